"""A broker is emptied by the controllers: step by step, within bounds, whoever is the active one."""

from __future__ import annotations

import pytest

from common.errors import ErrorCode
from common.pacing import Work, at_once
from kraft.controller.balance_requests import BalanceAct, list_balance_moves
from kraft.controller.balance_steps import LOOKS_MAX, BalanceStep, draining, undoing
from kraft.controller.brokers import fence
from kraft.controller.policy import is_cordoned
from kraft.fleet_records import BalanceOperationRecord, MoveOutcome, OperationState
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.records import Cause, FeatureLevelRecord, PartitionChangeRecord
from tests.kraft.balancing import (
    BALANCING,
    NOW_MS,
    altered,
    caught_up,
    finished,
    operation_of,
    replicas_of,
    stepped,
    throttled,
    with_partitions,
)
from tests.kraft.test_controller_reassignment import reassigned
from wire.messages import ListBalanceMovesRequest

TEN = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [1, 0, 3], [3, 1, 0]] * 2


def drain(image: MetadataImage, operation: BalanceOperationRecord) -> Work[BalanceStep]:
    return draining(image, BALANCING, operation, NOW_MS)


def undo(image: MetadataImage, operation: BalanceOperationRecord) -> BalanceStep:
    return undoing(image, BALANCING, operation, NOW_MS)


def test_every_replica_leaves_within_the_bounds_and_no_throttle_stays() -> None:
    image, reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    assert (reply.error_code, list(reply.operations)) == (0, [1])
    assert is_cordoned(image, 1)
    most = 0
    while not operation_of(image).state.has_ended:
        image, step = stepped(image, drain)
        assert len(image.topics.index.moving) == len(image.balance.running)
        most = max(most, len(image.balance.running))
        if step.begun:
            assert image.configs.cluster()["leader.replication.throttled.rate"] == "1000"
        if not step.records:
            image = caught_up(image)
    assert most == 3
    assert not any(1 in replicas for replicas in replicas_of(image))
    assert not throttled(image)
    ended = operation_of(image)
    assert (ended.state, ended.moves_begun, ended.moves_done, ended.ended_ms) == (OperationState.DONE, 10, 10, NOW_MS)
    assert is_cordoned(image, 1)
    assert {move.outcome for move in image.balance.moves.values()} == {MoveOutcome.DONE}
    assert {move.goal for move in image.balance.moves.values()} == {"drain"}


def test_another_controller_goes_on_from_what_a_snapshot_holds() -> None:
    begun, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    half = caught_up(stepped(begun, drain)[0])
    there = decode_snapshot(encode_snapshot(half))
    assert replicas_of(finished(there, drain)) == replicas_of(finished(half, drain))


def test_a_dead_broker_is_emptied_too() -> None:
    image = with_partitions(TEN)
    image = replayed(image, fence(image, image.brokers[1], BALANCING, Cause.SESSION_EXPIRED))
    image, _reply = altered(image, BalanceAct.DRAIN, 1)
    assert not any(1 in replicas for replicas in replicas_of(finished(image, drain)))


def test_each_change_says_that_it_is_a_drain() -> None:
    image, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    _image, step = stepped(image, drain)
    causes = {record.cause for record in step.records if isinstance(record, PartitionChangeRecord)}
    assert causes == {Cause.BROKER_DRAINING}


def test_a_cancelled_drain_undoes_what_runs_and_accepts_replicas_again() -> None:
    before = with_partitions(TEN)
    image, _reply = altered(before, BalanceAct.DRAIN, 1)
    image, _step = stepped(image, drain)
    assert throttled(image)
    image, reply = altered(image, BalanceAct.CANCEL)
    assert reply.error_code == 0
    image = finished(image, undo)
    assert operation_of(image).state is OperationState.CANCELLED
    assert replicas_of(image) == replicas_of(before)
    assert not is_cordoned(image, 1)
    assert not throttled(image)
    assert not image.balance.running
    assert {move.outcome for move in image.balance.moves.values()} == {MoveOutcome.CANCELLED}


def test_what_somebody_else_moves_meanwhile_is_overtaken_and_then_leaves_all_the_same() -> None:
    image, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    image, step = stepped(image, drain)
    index = step.begun[0].partition
    image, code = reassigned(image, [1, 3, 2], index=index)
    assert code is ErrorCode.NONE
    image = finished(image, drain)
    assert image.balance.moves[step.begun[0].number].outcome is MoveOutcome.OVERTAKEN
    assert not any(1 in replicas for replicas in replicas_of(image))


@pytest.mark.parametrize("wanted", ["paused", "resumed"])
def test_a_paused_drain_begins_nothing(wanted: str) -> None:
    image, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    image, _reply = altered(image, BalanceAct.PAUSE, operation=1)
    assert operation_of(image).state is OperationState.PAUSED
    if wanted == "resumed":
        image, _reply = altered(image, BalanceAct.RESUME)
        assert not any(1 in replicas for replicas in replicas_of(finished(image, drain)))


def test_a_broker_that_all_partitions_need_is_refused_with_the_reason() -> None:
    image, reply = altered(with_partitions([[0, 1, 2]], brokers=3), BalanceAct.DRAIN, 1)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    assert "t-0 has 3 replicas" in reply.error_message
    assert not image.balance.operations and not is_cordoned(image, 1)


def test_the_same_request_again_goes_on_and_another_for_the_broker_is_refused() -> None:
    image, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    image, again = altered(image, BalanceAct.DRAIN, 1)
    assert list(again.operations) == [1]
    _image, other = altered(image, BalanceAct.DRAIN, 1, 2)
    assert "cancel it first" in other.error_message


@pytest.mark.parametrize(
    ("act", "brokers", "text"),
    [
        (BalanceAct.DRAIN, [9], "There is no broker 9"),
        (BalanceAct.DRAIN, [], "Brokers are given"),
        (9, [], "There is no act 9"),
    ],
)
def test_what_cannot_be_done_is_refused(act: BalanceAct, brokers: list[int], text: str) -> None:
    image, reply = altered(with_partitions(TEN), act, *brokers)
    assert reply.error_code
    assert text in reply.error_message
    assert not image.balance.operations


def test_below_the_level_nothing_is_begun() -> None:
    image = replayed(with_partitions(TEN), [FeatureLevelRecord("tidelog.version", 2)])
    image, reply = altered(image, BalanceAct.DRAIN, 1)
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not image.balance.operations


def test_a_pause_with_nothing_running_is_an_operation_that_waits() -> None:
    image, reply = altered(with_partitions(TEN), BalanceAct.PAUSE)
    assert list(reply.operations) == [1]
    assert operation_of(image).state is OperationState.PAUSED


def test_moves_are_listed_by_partition_with_their_reason() -> None:
    image, _reply = altered(with_partitions(TEN), BalanceAct.DRAIN, 1)
    image = finished(image, drain)
    asked = ListBalanceMovesRequest(topic="t", partition_index=4)
    listed = at_once(list_balance_moves(image, asked)).reply
    (move,) = listed.moves
    assert (move.goal, move.reason, move.outcome) == ("drain", "broker 1 is emptied", "done")
    assert (1 in move.replicas_before, 1 in move.replicas_after) == (True, False)
    assert [one.state for one in listed.operations] == ["done"]
    assert not at_once(list_balance_moves(image, ListBalanceMovesRequest(limit=0))).reply.moves


def test_partitions_without_a_place_do_not_keep_a_drain_from_those_behind_them() -> None:
    stuck = LOOKS_MAX + 100
    image, _reply = altered(
        with_partitions([[0, 1, 2, 3]] * stuck + [[0, 1, 2, 4]] * 2, brokers=5), BalanceAct.DRAIN, 0
    )
    image = replayed(image, fence(image, image.brokers[4], BALANCING, Cause.SESSION_EXPIRED))
    step = at_once(drain(image, operation_of(image)))
    assert not step.records
    assert "cannot be emptied" in step.waits
    step = at_once(draining(image, BALANCING, operation_of(image), NOW_MS, step.looked_to))
    assert [move.partition for move in step.begun] == [stuck, stuck + 1]
    assert dict(step.looked_to) == {0: 0}, "the next step begins from the start again"
