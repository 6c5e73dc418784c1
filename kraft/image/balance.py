"""The balancer's operations and moves, as the image keeps them: what runs, and a bounded history.

Older ones remain in the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from kraft.fleet_records import BalanceMoveRecord, BalanceOperationRecord, MoveOutcome
from kraft.image.partition_index import PartitionKey

OPERATIONS_KEPT = 50
MOVES_KEPT = 1_000

T = TypeVar("T")


class BalanceImage(Struct, frozen=True):
    """`operations` by id and `moves` by number, the oldest first; `running`: numbers of moves that have not ended, by
    partition."""

    operations: Mapping[int, BalanceOperationRecord] = field(default_factory=dict)
    moves: Mapping[int, BalanceMoveRecord] = field(default_factory=dict)
    running: Mapping[PartitionKey, int] = field(default_factory=dict)

    @property
    def next_operation(self) -> int:
        """Ids grow and are never reused: the newest operation is always kept."""
        return max(self.operations, default=0) + 1

    @property
    def next_move(self) -> int:
        return max(self.moves, default=0) + 1

    def current(self) -> Iterator[BalanceOperationRecord]:
        """Operations that have not ended, the oldest first."""
        return (operation for operation in self.operations.values() if not operation.state.has_ended)

    def running_moves(self, operation: int) -> list[BalanceMoveRecord]:
        return [move for number in self.running.values() if (move := self.moves[number]).operation == operation]

    def records(self) -> Iterator[BalanceOperationRecord | BalanceMoveRecord]:
        """What rebuilds this from nothing."""
        yield from self.moves.values()
        yield from self.operations.values()  # last: their counts include the moves


NO_BALANCE = BalanceImage()


class BalanceDelta:
    """Replay of operations and moves; part of `MetadataDelta`. What is dropped depends on the records alone, and not on
    how they are divided into images."""

    def __init__(
        self, base: BalanceImage, operations_kept: int = OPERATIONS_KEPT, moves_kept: int = MOVES_KEPT
    ) -> None:
        self._base = base
        self._operations_kept, self._moves_kept = operations_kept, moves_kept
        self._operations: dict[int, BalanceOperationRecord] | None = None
        self._moves: dict[int, BalanceMoveRecord] = {}
        self._running: dict[PartitionKey, int] = {}
        self.is_empty = True

    def image(self) -> BalanceImage:
        if self._operations is None:
            return self._base
        return BalanceImage(self._operations, self._moves, self._running)

    def differs(self, new: BalanceImage) -> None:
        """Note whether `new` differs from the base."""
        self.is_empty = new == self._base

    def put_operation(self, record: BalanceOperationRecord) -> None:
        operations = self._mutable()
        operations[record.id] = record
        _forget_oldest(operations, self._operations_kept, lambda one: one.state.has_ended)

    def put_move(self, record: BalanceMoveRecord) -> None:
        operations = self._mutable()
        before = self._moves.get(record.number)
        self._moves[record.number] = record
        key = (record.topic_id, record.partition)
        if record.outcome is MoveOutcome.RUNNING:
            self._running.pop(key, None)  # so that these stay in order
            self._running[key] = record.number
        elif self._running.get(key) == record.number:
            del self._running[key]
        operation = operations.get(record.operation)
        if operation is not None:
            operations[record.operation] = _counted(operation, before, record)
        _forget_oldest(self._moves, self._moves_kept, lambda one: not self._runs(one))

    def _runs(self, move: BalanceMoveRecord) -> bool:
        return self._running.get((move.topic_id, move.partition)) == move.number

    def _mutable(self) -> dict[int, BalanceOperationRecord]:
        self.is_empty = False
        if self._operations is None:
            self._operations = dict(self._base.operations)
            self._moves = dict(self._base.moves)
            self._running = dict(self._base.running)
        return self._operations


def _forget_oldest(kept: dict[int, T], most: int, may_go: Callable[[T], bool]) -> None:
    """The newest stays, because the next one is numbered after it."""
    while len(kept) > most:
        newest = next(reversed(kept))
        oldest = next((number for number, one in kept.items() if may_go(one) and number != newest), None)
        if oldest is None:
            return
        del kept[oldest]


def _counted(
    operation: BalanceOperationRecord, before: BalanceMoveRecord | None, move: BalanceMoveRecord
) -> BalanceOperationRecord:
    """The operation after a record of one of its moves."""
    is_new = before is None
    ended = move.outcome is MoveOutcome.DONE and (before is None or before.outcome is not MoveOutcome.DONE)
    if not (is_new or ended):
        return operation
    return msgspec.structs.replace(
        operation,
        moves_begun=operation.moves_begun + is_new,
        moves_done=operation.moves_done + ended,
        bytes_to_copy=operation.bytes_to_copy + (move.bytes_to_copy if is_new else 0),
    )
