"""Tenants leave an overloaded cell by themselves: when it lasts, few at a time, and with a reason that stays."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec

from common.node_settings.balance import BalanceSettings
from common.pacing import at_once
from kraft.audit.balance_audit import operation_event
from kraft.controller.balance_cells import beginning_moves, looking_at_cells, sentences
from kraft.controller.balance_levelling import Inputs
from kraft.controller.balance_status import CellsLook
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.reported_usage import ReportedUsage
from kraft.fleet_records import BalanceOperationRecord, OperationKind, OperationState
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import TenantState
from tests.kraft.images import POLICY, new_topic
from tests.kraft.tenants import CELLS, alter_cell, cells_of_three, created, tenant_of, with_topics
from tests.kraft.usage_reports import report, tenant_row

TEN_MINUTES_S = 600.0
NOW_MS = 5_000_000
ROUND_MS = 5_000
BUSY = {"a": 0.3, "b": 0.35, "c": 0.25}
"""What each tenant takes of the loops of east's brokers."""


def with_tenants() -> MetadataImage:
    image = cells_of_three()
    for name in BUSY:
        image, reply = created(image, name, cell="east")
        assert reply.error_code == 0
        image, _ = with_topics(image, new_topic(f"{tenant_of(image, name).prefix}t", partitions=2, factor=3))
    return image


def reported(image: MetadataImage, busy: dict[str, float], rounds: int = 30) -> ReportedUsage:
    """What the brokers of east are busy with, in jobs of a millisecond that wait as in a queue; those of west rest."""
    usage = ReportedUsage()
    for number in range(1, rounds + 1):
        for cell, brokers in CELLS.items():
            parts = busy if cell == "east" else {}
            used = {tenant_of(image, name).id: int(part * 5e9 * number) for name, part in parts.items()}
            total, load = sum(used.values()), sum(parts.values())
            jobs = total // 1_000_000
            for broker in (one for one in brokers if one in image.brokers):
                request = report(
                    broker,
                    image.brokers[broker].epoch,
                    number,
                    number * ROUND_MS,
                    bytes_in=total // 1000,
                    requests=jobs,
                    busy_ns=total,
                    loop_jobs=jobs,
                    loop_busy_ns=total,
                    loop_service_ns=total,
                    loop_service_squares=jobs * 2e-6,
                    loop_wait_ns=int(jobs * 1e6 * load / (1 - load)),
                    tenants=[tenant_row(tenant, ns // 1000, busy_ns=ns) for tenant, ns in used.items()],
                )
                usage.take(image, request, number * 5.0)
    return usage


def given_of(image: MetadataImage, busy: dict[str, float] | None = None, **changed: Any) -> tuple[Inputs, BrokerLoads]:
    usage = reported(image, BUSY if busy is None else busy)
    policy = replace(POLICY, balance=BalanceSettings(**changed))
    loads = BrokerLoads()
    loads.measured_by(lambda broker: usage.load_of(broker, 150.0))
    return Inputs(policy, usage, 150.0, NOW_MS), loads


def looked(image: MetadataImage, given: tuple[Inputs, BrokerLoads], before: CellsLook) -> CellsLook:
    return at_once(looking_at_cells(image, *given, before, random.Random(1)))


def lasting(image: MetadataImage, given: tuple[Inputs, BrokerLoads]) -> CellsLook:
    """A look at what has lasted for ten minutes."""
    first = looked(image, given, CellsLook())
    past = [msgspec.structs.replace(one, since_s=one.since_s - TEN_MINUTES_S, is_due=False) for one in first.overloads]
    return looked(image, given, CellsLook(tuple(past)))


def begun(
    image: MetadataImage, given: tuple[Inputs, BrokerLoads], look: CellsLook
) -> tuple[MetadataImage, tuple[BalanceOperationRecord, ...]]:
    found = at_once(beginning_moves(image, *given, look, random.Random(1)))
    assert not found.problem
    return replayed(image, found.records), found.operations


def test_an_overload_begins_nothing_before_it_has_lasted() -> None:
    image = with_tenants()
    given = given_of(image)
    look = looked(image, given, CellsLook())
    (overload,) = look.overloads
    assert (overload.cell, overload.is_due) == ("east", False)
    assert overload.load > 0.8
    assert overload.relief.moves, "a dry run shows who would leave"
    assert begun(image, given, look)[1] == ()


def test_the_smallest_set_of_tenants_leaves_with_a_reason_in_the_audit() -> None:
    image = with_tenants()
    given = given_of(image)
    after, (operation,) = begun(image, given, lasting(image, given))
    moving = [tenant for tenant in after.tenants.values() if tenant.state is TenantState.MOVING]
    assert [(tenant.name, tenant.target_cell) for tenant in moving] == [("c", "west")], "the lightest that suffices"
    assert (operation.kind, operation.state) == (OperationKind.RELIEVE, OperationState.DONE)
    assert after.balance.operations[operation.id] == operation
    event = operation_event(operation)
    assert "cell east has load 0.90 for 600 s" in event["cause"]
    assert "tenant c (" in event["cause"]
    assert "moves to cell west" in event["cause"]


def test_a_cell_that_tenants_leave_begins_its_ten_minutes_again() -> None:
    image = with_tenants()
    given = given_of(image)
    due = lasting(image, given)
    after, _ = begun(image, given, due)
    (overload,) = looked(after, given, due).overloads
    assert (overload.is_due, overload.since_s) == (False, given[0].now_s)
    assert "tenants move" in overload.waits


def test_only_so_many_tenants_move_at_a_time() -> None:
    image = with_tenants()
    busy = {"a": 0.32, "b": 0.32, "c": 0.32}
    few = given_of(image, busy, tenant_moves_max=1)
    after, operations = begun(image, few, lasting(image, few))
    assert len(operations) == 1
    assert begun(after, few, lasting(image, few))[1] == (), "one moves already"


def test_a_cell_is_exhausted_when_no_other_one_is_open() -> None:
    image = with_tenants()
    image, _ = alter_cell(image, "west", opened=0)
    given = given_of(image)
    look = looked(image, given, CellsLook())
    assert look.exhausted == [], "not yet"
    look = lasting(image, given)
    assert look.exhausted == ["east"]
    assert begun(image, given, look)[1] == ()
    (sentence,) = sentences(image, look)
    assert sentence.endswith("for 600 s: no other cell can take more")


def test_a_cell_whose_brokers_have_not_reported_is_not_judged() -> None:
    image = with_tenants()
    loads = BrokerLoads()
    for broker in CELLS["east"]:
        loads.heard(broker, image.brokers[broker].epoch, 0.0, 1.0, 0.0)
    assert looked(image, (Inputs(POLICY, ReportedUsage(), 150.0, NOW_MS), loads), CellsLook()).overloads == ()


def test_a_cell_below_its_limit_begins_nothing() -> None:
    image = with_tenants()
    assert looked(image, given_of(image, {"a": 0.3, "b": 0.2}), CellsLook()).overloads == ()
