"""The balancer's duties of an active controller: when it looks and steps, what it counts, what an operator reads."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from types import GeneratorType
from typing import Any

import msgspec
import pytest

from common.node_settings.balance import BalanceSettings
from common.pacing import at_once
from common.ports import Ports
from kraft.controller.balance_duties import CELLS, LOOK, LOOK_S, BalanceDuties
from kraft.controller.balance_requests import BalanceAct
from kraft.controller.balance_status import BalanceStatus, CellsLook
from kraft.controller.balance_steps import BalanceStep
from kraft.fleet_records import OperationKind, OperationState
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.metadata import MetadataImage
from kraft.records import FeatureLevelRecord
from tests.kraft.balancing import altered, caught_up, operation_of, with_partitions
from tests.kraft.tenants import alter_cell
from tests.kraft.test_controller_cell_relief import NOW_MS, given_of, looked, with_tenants

INTERVAL_S = 60.0


class HandClock:
    def __init__(self) -> None:
        self.now = 150.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return NOW_MS


class Duty:
    """One controller; every broker of east has reported a cell that is overloaded, if there are tenants."""

    def __init__(self, image: MetadataImage, *, has_reports: bool = False, **changed: Any) -> None:
        self.image, self.clock = image, HandClock()
        self.given = given_of(image, None if has_reports else {}, **changed)
        ports = Ports(None, None, self.clock, random.Random(1))  # type: ignore[arg-type]
        inputs, loads = self.given
        self.duties = BalanceDuties(inputs.policy, ports, BalanceStatus(), inputs.usage, loads)
        self.duties.became_active(image)

    def due(self) -> Sequence[str]:
        return self.duties.due(self.image)

    def step(self, subject: str) -> BalanceStep:
        found: Any = self.duties.step(self.image, subject)
        step: BalanceStep = at_once(found) if isinstance(found, GeneratorType) else found
        self.image = replayed(self.image, step.records)
        self.duties.committed(subject, step)
        return step

    def found_long_ago(self) -> None:
        """The last look found what there is now, ten minutes ago."""
        look = looked(self.image, self.given, CellsLook())
        past = [msgspec.structs.replace(one, since_s=one.since_s - 600.0) for one in look.overloads]
        self.duties.status.looked_at_cells(CellsLook(tuple(past)), self.clock.now)


def test_a_new_controller_looks_after_an_interval_and_not_before() -> None:
    duty = Duty(with_tenants())
    assert duty.due() == []
    assert duty.duties.look_s(duty.image) == INTERVAL_S
    duty.clock.now += INTERVAL_S
    assert duty.due() == [LOOK, CELLS]
    assert duty.duties.look_s(duty.image) == 0.0


@pytest.mark.parametrize(("changed", "subjects"), [({"enable": False}, []), ({"cells_enable": False}, [LOOK])])
def test_the_switches_stop_what_begins_by_itself(changed: dict[str, bool], subjects: list[str]) -> None:
    duty = Duty(with_tenants(), **changed)
    duty.clock.now += INTERVAL_S
    assert duty.due() == subjects


def test_nothing_begins_by_itself_at_an_older_level() -> None:
    duty = Duty(replayed(with_tenants(), [FeatureLevelRecord("tidelog.version", 2)]))
    duty.clock.now += INTERVAL_S
    assert duty.due() == []
    assert duty.duties.look_s(duty.image) is None


def test_looks_begin_with_the_level_that_allows_them() -> None:
    """A new cluster has its level only after its first controller has become active."""
    duty = Duty(MetadataImage())
    assert duty.duties.look_s(duty.image) is None
    delta = MetadataDelta(duty.image)
    delta.replay(FeatureLevelRecord("tidelog.version", 3))
    image = delta.image()
    duty.duties.applied(delta, image)
    assert duty.duties.changed.is_set()
    assert duty.duties.look_s(image) == INTERVAL_S


def test_the_ten_minutes_begin_again_when_a_tenant_has_arrived_between_two_looks() -> None:
    duty = Duty(with_tenants(), has_reports=True)
    duty.found_long_ago()
    tenant = next(iter(duty.image.tenants.values()))
    delta = MetadataDelta(duty.image)
    delta.replay(msgspec.structs.replace(tenant.record(), cell="west"))
    image = delta.image()
    duty.clock.now += 1.0
    duty.duties.applied(delta, image)
    (overload,) = duty.duties.status.cells.overloads
    assert (overload.cell, overload.since_s, overload.is_due) == ("east", duty.clock.now, False)


def test_without_tenants_no_cell_is_looked_at() -> None:
    duty = Duty(with_partitions([[0, 1, 2]]))
    duty.clock.now += INTERVAL_S
    assert duty.due() == [LOOK]


def test_a_cell_that_stays_overloaded_gives_a_tenant_away_and_is_counted() -> None:
    duty = Duty(with_tenants(), has_reports=True)
    assert not duty.step(CELLS).records, "it has not lasted"
    duty.found_long_ago()
    step = duty.step(CELLS)
    assert [operation.kind for operation in duty.image.balance.operations.values()] == [OperationKind.RELIEVE]
    assert len(duty.image.tenants.moving) == 1
    assert len(step.records) == 2
    assert duty.duties.tenants_moved == 1


def test_a_dry_run_says_once_which_tenants_would_leave(caplog: pytest.LogCaptureFixture) -> None:
    duty = Duty(with_tenants(), has_reports=True, dry_run=True)
    with caplog.at_level(logging.INFO):
        duty.step(CELLS)
        assert not caplog.messages
        duty.found_long_ago()
        duty.step(CELLS)
        duty.step(CELLS)
    assert caplog.messages == ["tenants would leave an overloaded cell"]
    assert not duty.image.balance.operations
    assert not duty.image.tenants.moving


def test_while_the_balancer_is_paused_no_tenant_leaves() -> None:
    duty = Duty(with_tenants(), has_reports=True)
    duty.image, _reply = altered(duty.image, BalanceAct.PAUSE, operation=-1)
    duty.found_long_ago()
    assert not duty.step(CELLS).records
    assert duty.duties.status.cells.overloads[0].is_due
    (paused,) = duty.image.balance.operations.values()
    assert paused.reason == "paused by an operator"
    duty.image, _reply = altered(duty.image, BalanceAct.RESUME, operation=-1)
    (resumed,) = duty.image.balance.operations.values()
    assert resumed.reason == "resumed by an operator"


def test_exhausted_cells_are_one_error_line_and_counted_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    image, _ = alter_cell(with_tenants(), "west", opened=0)
    duty = Duty(image, has_reports=True)
    duty.found_long_ago()
    for _ in range(3):
        duty.step(CELLS)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "add brokers" in caplog.text
    assert duty.duties.status.cells.exhausted == ["east"]
    duty.image, _ = alter_cell(duty.image, "west", opened=1)
    duty.step(CELLS)
    assert duty.duties.status.cells.exhausted == []


def test_an_operation_is_stepped_each_second_and_its_moves_are_counted() -> None:
    image, _reply = altered(with_partitions([[0, 1, 2]] * 4), BalanceAct.DRAIN, 0)
    duty = Duty(image, enable=False, moves_max=2)
    assert duty.due() == ["1"]
    assert duty.duties.look_s(duty.image) == LOOK_S
    assert len(duty.step("1").begun) == 2
    assert duty.duties.begun == {"drain": 2}
    assert duty.step("1").waits == "moves that run"
    assert duty.duties.status.reason(1) == "moves that run"
    duty.image = caught_up(duty.image)
    assert len(duty.step("1").ended) == 2
    assert duty.duties.ended["done"] == 2
    for _ in range(10):
        duty.step("1")
        duty.image = caught_up(duty.image)
    assert operation_of(duty.image).state is OperationState.DONE
    assert duty.due() == []
    assert duty.duties.status.reason(1) is None
    assert not duty.step("1").records, "it has ended meanwhile"


def test_a_paused_operation_is_stepped_only_while_its_moves_run() -> None:
    image, _reply = altered(with_partitions([[0, 1, 2]] * 4), BalanceAct.DRAIN, 0)
    duty = Duty(image, enable=False, moves_max=2)
    duty.step("1")
    duty.image, _reply = altered(duty.image, BalanceAct.PAUSE, operation=1)
    assert duty.due() == ["1"]
    assert duty.step("1").waits == "it is paused"
    duty.image = caught_up(duty.image)
    duty.step("1")
    assert duty.due() == []


def test_another_leadership_forgets_what_this_one_saw() -> None:
    duty = Duty(with_tenants(), has_reports=True)
    duty.found_long_ago()
    duty.step(CELLS)
    duty.duties.became_active(duty.image)
    assert duty.duties.status.cells == CellsLook()
    assert duty.due() == []


def test_settings_say_when_a_cell_is_overloaded_for_long_enough() -> None:
    assert BalanceSettings().cells_overload_ms == 600_000
    duty = Duty(with_tenants(), has_reports=True, cells_overload_ms=0)
    assert duty.step(CELLS).records
