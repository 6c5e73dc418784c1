"""Mistakes with transactions to plant into the product; see `bugs.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from broker.coordination import loading
from broker.coordination.awaiting_commit import AwaitingCommit, Waiter
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.pending_group import PendingGroup
from broker.coordination.transactions import ending, moving_ids, transaction_shard
from broker.coordination.transactions.coordinator import TransactionCoordinator
from broker.coordination.transactions.markers import TransactionMarkers
from broker.coordination.transactions.records import state_of
from broker.coordination.transactions.transaction_shard import TransactionShard
from broker.coordination.transactions.values import NO_PRODUCER_ID, MarkersToWrite, Producer, Transaction
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.partition import Partition
from broker.partitions.replica import Replica
from broker.partitions.transactional_appends import Permissions
from broker.tier import copying, service
from broker.tier.led import LedPartition
from common.errors import ErrorCode

Replace = Callable[[Any, str, object], None]


def mark_before_the_commit(replace: Replace) -> None:
    """Markers are sent as soon as the decision is appended."""
    right = AwaitingCommit.add

    def add(
        self: AwaitingCommit, end_offset: int, size: int, acts: list[object], waiters: list[Waiter], now_s: float
    ) -> None:
        self._acts.begin(acts)
        right(self, end_offset, size, [], waiters, now_s)

    replace(AwaitingCommit, "add", add)


def forget_the_prepared_at_load(replace: Replace) -> None:
    """A new coordinator sends no markers for what the one before has decided."""
    right = TransactionShard.unread_value

    def unread(self: TransactionShard, transactional_id: str) -> bytes | None:
        """Neither by itself, nor when a client asks for the id."""
        value = right(self, transactional_id)
        return None if value is None or state_of(value).is_prepared else value

    replace(TransactionShard, "unread_value", unread)


def _answer_at_once(replace: Replace, of_shard: str, of_coordinator: str) -> None:
    """What the shard decides is told before it is committed."""
    decide, right = getattr(TransactionShard, of_shard), getattr(TransactionCoordinator, of_coordinator)
    waiting: dict[int, asyncio.Future[Producer]] = {}

    def deciding(self: TransactionShard, request: Any, fresh_id: Any, now: Any) -> Any:
        decision, told = decide(self, request, fresh_id, now), waiting.get(id(request))
        if isinstance(decision.reply, Producer) and told is not None and not told.done():
            told.set_result(decision.reply)
        return decision

    async def answering(self: TransactionCoordinator, request: Any) -> Producer:
        told = waiting[id(request)] = asyncio.get_running_loop().create_future()
        whole = asyncio.create_task(right(self, request))
        whole.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([whole, told], return_when=asyncio.FIRST_COMPLETED)
        del waiting[id(request)]
        producer: Producer = told.result() if told.done() else await whole
        return producer

    replace(TransactionShard, of_shard, deciding)
    replace(TransactionCoordinator, of_coordinator, answering)


def answer_the_end_before_its_commit(replace: Replace) -> None:
    _answer_at_once(replace, "end", "end")


def fence_without_a_record(replace: Replace) -> None:
    """A producer gets its epoch while the record of it may still be lost."""
    _answer_at_once(replace, "init_producer_id", "init_producer_id")


def mark_with_the_old_epoch(replace: Replace) -> None:
    """Markers of the new protocol carry the epoch that the transaction had."""
    begin_right, complete_right = TransactionMarkers.begin, TransactionShard.complete

    def begin(self: TransactionMarkers, index: int, leader_epoch: int, asked: MarkersToWrite) -> None:
        if asked.new_protocol:
            asked = asked._replace(producer_epoch=asked.producer_epoch - 1, new_protocol=False)
        begin_right(self, index, leader_epoch, asked)

    def complete(self: TransactionShard, written: Sequence[MarkersToWrite], now: Any) -> Any:
        held = [(self.open.get(one.transactional_id), one) for one in written]
        current = [one._replace(producer_epoch=state.producer_epoch) for state, one in held if state is not None]
        return complete_right(self, current, now)

    replace(TransactionMarkers, "begin", begin)
    replace(TransactionShard, "complete", complete)


def ask_no_coordinator(replace: Replace) -> None:
    """A producer of the old protocol begins a transaction wherever it sends a batch."""
    replace(TransactionVerification, "asks", lambda self, *, adds: adds)


def keep_permissions_for_ever(replace: Replace) -> None:
    """What was confirmed once is good for later transactions."""
    replace(Permissions, "void_ended", lambda self, marker: None)


def complete_with_the_first_marker(replace: Replace) -> None:
    right = TransactionMarkers.answered

    def answered(self: TransactionMarkers, sending: Any, outcome: Iterable[tuple[Any, ErrorCode]]) -> None:
        known = list(outcome)
        if any(error is ErrorCode.NONE for _, error in known):
            sending.left.clear()
        right(self, sending, known)

    replace(TransactionMarkers, "answered", answered)


def load_without_markers(replace: Replace) -> None:
    """A group's coordinator that loads skips control batches."""
    replace(loading, "read_marker", lambda view, at, size: None)


def show_pending_offsets(replace: Replace) -> None:
    replace(GroupShard, "replay_pending", lambda self, producer, records: self.replay_all(records))


def let_the_last_marker_win(replace: Replace) -> None:
    """The order of markers decides which offset counts, and not that of the records."""
    replace(PendingGroup, "_not_overtaken", lambda self, values, batches: values)


def keep_a_used_up_id(replace: Replace) -> None:
    """A producer goes on with its id when the epochs are used up."""
    right = ending.completed

    def completed(prepared: Transaction, now_ms: int) -> Transaction:
        return right(prepared._replace(next_id=NO_PRODUCER_ID), now_ms)

    for module in (ending, transaction_shard):
        replace(module, "completed", completed)


def read_up_to_the_high_watermark_on_followers(replace: Replace) -> None:
    right = Replica.last_stable_offset
    assert isinstance(right, property)
    of = right.fget

    def last_stable_offset(self: Replica) -> int:
        return self.high_watermark if isinstance(self, Partition) and not self.is_leader else of(self)

    replace(Replica, "last_stable_offset", property(last_stable_offset))


class _Instead:
    """An object some of whose attributes are others."""

    def __init__(self, of: object, **others: object) -> None:
        self._of = of
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def copy_the_undecided(replace: Replace) -> None:
    """The tier copies all that is committed, whether or not its transactions have ended."""
    right = copying.next_segment

    def next_segment(led: Any, tier: Any) -> Any:
        partition = _Instead(led.partition, last_stable_offset=led.partition.high_watermark)
        return right(cast(LedPartition, _Instead(led, partition=partition)), tier)

    for module in (copying, service):
        replace(module, "next_segment", next_segment)


def let_coordinator_epochs_fall(replace: Replace) -> None:
    """Where a tenant's ids come to, coordinator epochs begin with the leader epoch, whatever was used before."""
    replace(moving_ids, "raised_floor", lambda floor, leader_epoch, handed_over: floor)


TRANSACTION_BUGS: dict[str, Callable[[Replace], None]] = {
    plant.__name__: plant
    for plant in (
        mark_before_the_commit,
        forget_the_prepared_at_load,
        answer_the_end_before_its_commit,
        mark_with_the_old_epoch,
        ask_no_coordinator,
        keep_permissions_for_ever,
        complete_with_the_first_marker,
        load_without_markers,
        show_pending_offsets,
        let_the_last_marker_win,
        fence_without_a_record,
        keep_a_used_up_id,
        read_up_to_the_high_watermark_on_followers,
        copy_the_undecided,
        let_coordinator_epochs_fall,
    )
}
"""Found in seeds with transactions."""
