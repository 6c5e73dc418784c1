"""A transaction shard without a runtime: decisions are applied at once, as if they were committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.coordination.shard import CoordinatorRecord, Now
from broker.coordination.transactions.adding import by_topic
from broker.coordination.transactions.config import TransactionConfig, TransactionLimits
from broker.coordination.transactions.records import encode_key, encode_value
from broker.coordination.transactions.transaction_shard import TransactionDecision, TransactionShard
from broker.coordination.transactions.values import (
    NEEDS_ID,
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersToWrite,
    Producer,
    Transaction,
    TransactionFilter,
)
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.image.key_ranges import Keeping
from kraft.records import KeysPhase

Reply = TypeVar("Reply")
START_MS = 1_700_000_000_000


class TransactionDriver:
    """Times advance by `pass_ms` alone. `log` has every record, in order; `acts` the markers that were asked for."""

    def __init__(
        self,
        config: TransactionConfig | None = None,
        *,
        version: int = 2,
        limits: TransactionLimits | None = None,
        log: Sequence[CoordinatorRecord] = (),
    ) -> None:
        self.config = config or TransactionConfig()
        self.version = version
        self.limits = limits or TransactionLimits()
        self.keeping = Keeping.SERVED
        self.keys_phase = KeysPhase.SETTLED
        self.ms = 0
        self.next_id = 100
        self.wanted: list[tuple[str, bool]] = []
        self.log: list[CoordinatorRecord] = []
        self.acts: list[MarkersToWrite] = []
        self.shard = self.loaded(log)

    def loaded(self, log: Sequence[CoordinatorRecord]) -> TransactionShard:
        """A new shard over a log, as a new leader has it."""
        shard = self.loading(log)
        shard.loaded(self.now)
        return shard

    def loading(self, log: Sequence[CoordinatorRecord]) -> TransactionShard:
        shard = TransactionShard(
            self.config,
            lambda: self.version,
            lambda _: self.limits,
            lambda _: self.keeping,
            lambda transactional_id, removal: self.wanted.append((transactional_id, removal)),
            lambda _: self.keys_phase,
        )
        shard.replay_all([(record.key, record.value) for record in log])
        return shard

    def reload(self) -> None:
        """The leader changes."""
        self.acts.clear()
        self.shard = self.loaded(self.log)
        self.run_timers()

    @property
    def now(self) -> Now:
        return Now(self.ms / 1000, START_MS + self.ms)

    def apply(self, records: list[CoordinatorRecord]) -> None:
        for record in records:
            self.shard.replay(record.key, record.value)
            self.log.append(record)
        self.acts += [act for act in self.shard.take_acts() if isinstance(act, MarkersToWrite)]

    def decided(self, decision: Decision[CoordinatorRecord, Reply]) -> Reply:
        self.apply(decision.records)
        return decision.reply

    def fresh_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def put(self, transactional_id: str, transaction: Transaction) -> None:
        """The id is in this state, whatever was before."""
        value = encode_value(transaction, flexible=self.version > 0)
        self.apply([CoordinatorRecord(encode_key(transactional_id), value)])

    def state(self, transactional_id: str) -> Transaction:
        found = self.shard.find(transactional_id)
        assert found is not None
        return found

    # requests: the code, and the producer of the answer ------------------------------------------------------

    def init(
        self, transactional_id: str, producer: Producer = NO_PRODUCER, timeout_ms: int = 60_000
    ) -> tuple[ErrorCode, Producer]:
        request = InitProducer(transactional_id, timeout_ms, *producer)
        return self._with_id(lambda fresh_id: self.shard.init_producer_id(request, fresh_id, self.now))

    def end(
        self, transactional_id: str, producer: Producer, *, commit: bool, new_protocol: bool = True
    ) -> tuple[ErrorCode, Producer]:
        request = EndTransaction(transactional_id, *producer, commit, new_protocol)
        return self._with_id(lambda fresh_id: self.shard.end(request, fresh_id, self.now))

    def add(
        self, transactional_id: str, producer: Producer, *partitions: tuple[str, int], new_protocol: bool = True
    ) -> ErrorCode:
        request = AddPartitions(transactional_id, *producer, by_topic(partitions), new_protocol)
        try:
            self.decided(self.shard.add_partitions(request, self.now))
        except ProtocolError as error:
            return error.code
        return ErrorCode.NONE

    def verify(self, transactional_id: str, producer: Producer, *partitions: tuple[str, int]) -> tuple[ErrorCode, ...]:
        try:
            return self.shard.verify_partitions(transactional_id, *producer, partitions)
        except ProtocolError as error:
            return (error.code,) * len(partitions)

    def names(self, wanted: TransactionFilter) -> list[str]:
        return [one.transactional_id for one in at_once(self.shard.list_transactions(wanted, self.now))]

    def write_markers(self) -> list[MarkersToWrite]:
        """Every marker that was asked for is written."""
        written, self.acts = self.acts, []
        self.decided(self.shard.complete(written, self.now))
        return written

    def _with_id(self, decide: Callable[[int | None], TransactionDecision]) -> tuple[ErrorCode, Producer]:
        try:
            reply = self.decided(decide(None))
            if reply is NEEDS_ID:
                reply = self.decided(decide(self.fresh_id()))
        except ProtocolError as error:
            return error.code, Producer()
        if isinstance(reply, Producer):
            return ErrorCode.NONE, reply
        assert isinstance(reply, ErrorCode)
        return reply, Producer()

    # time ---------------------------------------------------------------------------------------------------

    def pass_ms(self, ms: int) -> None:
        self.ms += ms
        self.run_timers()

    def run_timers(self) -> None:
        """Everything that is due now; producer ids are there when they are asked for."""
        while (deadline := self.shard.next_deadline()) is not None and deadline <= self.now.monotonic_s:
            self.apply(self.shard.expire(self.now))
        wanted, self.wanted[:] = list(self.wanted), []
        for transactional_id, removal in wanted:
            self.decided(self.shard.fence_with(transactional_id, self.fresh_id(), self.now, removal=removal))
