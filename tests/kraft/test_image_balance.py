"""The balancer's operations and moves in the image: kept within bounds, equal on every node, told in the audit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.audit.metadata_audit import MetadataAudit
from kraft.batches import Batch, BatchHeader, MetadataRecord, decode_batch, encode_batch
from kraft.fleet_records import (
    BalanceMoveRecord,
    BalanceOperationRecord,
    MoveOutcome,
    OperationKind,
    OperationState,
)
from kraft.image.balance import NO_BALANCE, BalanceDelta, BalanceImage
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot

TOPIC = bytes([1] * 16)
ACTOR = "User:admin@10.0.0.1"


def operation(number: int = 1, state: OperationState = OperationState.RUNNING) -> BalanceOperationRecord:
    return BalanceOperationRecord(
        number, OperationKind.DRAIN, (1,), state, "by an operator", begun_ms=5, moves_max=7, actor=ACTOR
    )


def move(number: int, outcome: MoveOutcome = MoveOutcome.RUNNING) -> BalanceMoveRecord:
    return BalanceMoveRecord(
        number, 1, TOPIC, "t", number % 3, (1, 2), (3, 2), "drain", "broker 1 is emptied",
        2.0, 1.0, 0.0, 1.0, ("racks",), 100, 6,
        outcome=outcome,
    )  # fmt: skip


Records = list[BalanceOperationRecord | BalanceMoveRecord]


def records() -> st.SearchStrategy[BalanceOperationRecord | BalanceMoveRecord]:
    numbers = st.integers(1, 9)
    return st.one_of(
        st.builds(operation, numbers, st.sampled_from(OperationState)),
        st.builds(move, numbers, st.sampled_from(MoveOutcome)),
    )


def after(base: BalanceImage, found: Iterable[BalanceOperationRecord | BalanceMoveRecord]) -> BalanceImage:
    """With bounds that a few records reach."""
    delta = BalanceDelta(base, operations_kept=3, moves_kept=4)
    for record in found:
        if isinstance(record, BalanceMoveRecord):
            delta.put_move(record)
        else:
            delta.put_operation(record)
    return delta.image()


@settings(max_examples=150, deadline=None)
@given(st.lists(records(), max_size=40), st.integers(1, 40))
def test_history_is_bounded_and_the_same_however_records_are_divided(found: Records, cut: int) -> None:
    whole = after(NO_BALANCE, found)
    pieces = NO_BALANCE
    for at in range(0, len(found), cut):
        pieces = after(pieces, found[at : at + cut])
    assert list(whole.moves.items()) == list(pieces.moves.items())
    assert whole == pieces
    assert len(whole.moves) <= max(4, len(whole.running) + 1)
    for key, number in whole.running.items():
        one = whole.moves[number]
        assert (one.topic_id, one.partition) == key and one.outcome is MoveOutcome.RUNNING
    again = after(NO_BALANCE, whole.records())
    assert (again.moves, again.operations) == (whole.moves, whole.operations)


def test_an_operation_counts_its_moves_and_a_snapshot_keeps_the_counts() -> None:
    image = replayed(EMPTY_IMAGE, [operation(), move(1), move(2), move(1, MoveOutcome.DONE)])
    counted = image.balance.operations[1]
    assert (counted.moves_begun, counted.moves_done, counted.bytes_to_copy) == (2, 1, 200)
    assert [one.number for one in image.balance.running_moves(1)] == [2]
    again = decode_snapshot(encode_snapshot(image))
    assert again.balance == image.balance
    assert again.balance.operations[1].actor == ACTOR
    assert (again.balance.next_operation, again.balance.next_move) == (2, 3)
    ended = replayed(image, [msgspec.structs.replace(counted, state=OperationState.DONE)])
    assert not list(ended.balance.current())


def test_a_jump_names_what_differs() -> None:
    image = replayed(EMPTY_IMAGE, [operation(), move(1)])
    assert not at_once(differing(EMPTY_IMAGE, image)).is_empty
    assert at_once(differing(image, image)).is_empty
    delta = MetadataDelta(image)
    delta.replay(move(1, MoveOutcome.DONE))
    assert not delta.is_empty
    assert delta.image().balance.running == {}
    assert image.balance.running == {(TOPIC, 1): 1}


def audited(base: MetadataImage, *found: MetadataRecord) -> list[dict[str, object]]:
    batch = decode_batch(encode_batch(Batch(BatchHeader(1, 1_000, 1, base.next_offset), list(found))))
    assert batch is not None
    return [msgspec.to_builtins(event) for event in MetadataAudit(base.next_offset, base).events(batch)]


def test_the_audit_tells_what_moved_why_and_who_agreed() -> None:
    begun, moved = audited(EMPTY_IMAGE, operation(), move(1))
    assert (begun["event"], begun["actor"], begun["cause"]) == ("balance_operation_changed", ACTOR, "by an operator")
    assert (moved["topic"], moved["partition"], moved["actor"]) == ("t", 1, "controller-1000")
    assert moved["cause"] == "drain: broker 1 is emptied"
    assert moved["before"] == {"replicas": [1, 2]}
    after = moved["after"]
    assert isinstance(after, dict)
    assert (after["replicas"], after["agreed"], after["outcome"]) == ([3, 2], ["racks"], "RUNNING")
    assert (after["source_before"], after["target_after"], after["bytes_to_copy"]) == (2.0, 1.0, 100)
