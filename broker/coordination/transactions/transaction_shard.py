"""One partition of `__transaction_state`: its transactional ids, and the transactions that they have.

Hard state is `committed`, each id's newest record as bytes; only `replay` changes it. Of the open transactions the
decoded state is kept beside it. After a load they are taken up some at a time: ongoing ones get their timeouts, and for
prepared ones the markers are asked for. A request takes its own up first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from broker.coordination.groups.tenant_index import ByTenant, bytes_of_id
from broker.coordination.packed_records import Run, pack_parts, pack_runs
from broker.coordination.shard import Answer, CoordinatorRecord, Now, replay_each
from broker.coordination.transactions.adding import verified, with_partitions
from broker.coordination.transactions.config import TransactionConfig, TransactionLimits
from broker.coordination.transactions.decided import Decided
from broker.coordination.transactions.ending import completed, end_step
from broker.coordination.transactions.expiry import IdExpiry
from broker.coordination.transactions.listing import listed
from broker.coordination.transactions.prepared import Prepared
from broker.coordination.transactions.producers import (
    NEW_PROTOCOL_VERSION,
    Step,
    check_init,
    fence,
    first_step,
    init_step,
)
from broker.coordination.transactions.records import (
    EPOCH_FLOOR_KEY,
    decode_epoch_floor,
    decode_key,
    decode_value,
    decoding_cost,
    encode_epoch_floor,
    encode_key,
    encode_value,
    encoding_cost,
    epoch_floor_record,
    state_of,
    transaction_record,
    updated_ms_of,
)
from broker.coordination.transactions.removals import Removals
from broker.coordination.transactions.values import (
    NEEDS_ID,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    MarkersToWrite,
    NeedsId,
    Producer,
    Transaction,
    TransactionFilter,
    TransactionState,
)
from broker.deadlines import DeadlineQueue
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.key_ranges import GROUPS_HELD_BACK, Keeping
from kraft.image.tenants import local_name, tenant_of
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC

KeepingOf = Callable[[str], Keeping]
TransactionDecision = Decision[CoordinatorRecord, Producer | ErrorCode | NeedsId]
ID_BYTES = 330  # memory of an id's entries beside its record, measured
TAKE_UP_TURN_S = 0.002
_TIMER_LOOKS = 16
LONG_VALUE_BYTES = 64 << 10  # of thousands of partitions: it is taken up in a turn of its own


class _Timer(Enum):
    TAKE_UP = "take up"
    TIMEOUTS = "timeouts"
    EXPIRY = "expiry"


class TransactionShard:
    """Implements `coordination.shard.Shard`, with acts (`MarkersToWrite`), snapshots, and records that can be taken
    back.

    `version` is the cluster's finalized `transaction.version`. `limits_of(tenant)`: None stands for the operators.
    `wants_id(transactional_id, removal)` asks for a new producer id, for a fence that needs one: of a timeout, or, if
    `removal`, of a deleted tenant; see `fence_with`.
    `keys_phase_of(transactional_id)`: of its tenant, whose groups move only while no transaction has offsets of them.
    `serials`: see `Prepared`.
    """

    def __init__(
        self,
        config: TransactionConfig,
        version: Callable[[], int],
        limits_of: Callable[[str | None], TransactionLimits],
        keeping_of: KeepingOf,
        wants_id: Callable[[str, bool], None],
        keys_phase_of: Callable[[str], KeysPhase] = lambda _: KeysPhase.SETTLED,
        serials: Iterator[int] | None = None,
    ) -> None:
        self.epoch_floor = 0  # of coordinator epochs; see `coordinator_epochs`
        self.committed: ByTenant[bytes] = ByTenant()
        self.open: ByTenant[Transaction | None] = ByTenant()  # None: not taken up yet
        self._config = config
        self._version = version
        self._limits_of = limits_of
        self._keeping_of = keeping_of
        self._wants_id = wants_id
        self._keys_phase_of = keys_phase_of
        self._expiry = IdExpiry(config, self.committed, self.open.__contains__, keeping_of)
        self._timeouts: DeadlineQueue[str] = DeadlineQueue()  # wall-clock seconds
        self._timers: DeadlineQueue[_Timer] = DeadlineQueue()
        self._left: deque[str] = deque()  # open transactions that may not be taken up yet
        self._acts: list[object] = []
        self._prepared = Prepared(serials)
        self._decided = Decided()
        self._removals = Removals(config, self.committed, self.open, self._removal)
        self._serves = False

    # shard -------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        if key == EPOCH_FLOOR_KEY:
            self.epoch_floor = decode_epoch_floor(value)
            return
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        self._decided.replayed(transactional_id, value)
        if value is None:
            self.committed.pop(transactional_id, None)
            self._close(transactional_id)
            self._expiry.removed()
            return
        is_open = state_of(value).is_open
        transaction = self._decided.transaction(transactional_id, value) if is_open and self._serves else None
        if transactional_id not in self.committed:
            self._expiry.added(transactional_id, 0 if is_open else updated_ms_of(value))
        self.committed[transactional_id] = value
        if not is_open:
            self._close(transactional_id)
        elif transaction is not None:
            self._take_up(transactional_id, transaction)
        else:
            self.open[transactional_id] = None

    def _close(self, transactional_id: str) -> None:
        if transactional_id in self.open:
            del self.open[transactional_id]
            self._prepared.drop(transactional_id)
            self._timeouts.cancel(transactional_id)

    def _take_up(self, transactional_id: str, transaction: Transaction) -> None:
        """An open transaction is known: wait for its end, or ask for its markers."""
        self.open[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._prepared.drop(transactional_id)
            self._timeouts.set(transactional_id, (transaction.start_ms + transaction.timeout_ms) / 1000)
            return
        self._timeouts.cancel(transactional_id)
        self._acts.append(self._prepared.ask(transactional_id, transaction, self.epoch_floor))

    def before(self, record: CoordinatorRecord) -> CoordinatorRecord:
        """A record that restores the current value of `record`'s key."""
        if record.key == EPOCH_FLOOR_KEY:
            return epoch_floor_record(self.epoch_floor)
        transactional_id = decode_key(record.key)
        return record._replace(value=None if transactional_id is None else self.committed.get(transactional_id))

    def undo(self, before: list[CoordinatorRecord], now: Now) -> None:
        """Where the end of a transaction is taken back, its markers are asked for again: leaders that have them already
        say so, and it is ended once more. They must not have a coordinator epoch that is taken back, too."""
        for key, value in sorted(before, key=lambda record: record.key != EPOCH_FLOOR_KEY):
            self.replay(key, value)

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        return replay_each(self, records)

    def held_bytes(self) -> int:
        held = self.committed
        return len(held) * ID_BYTES + held.all_id_bytes + sum(map(len, held.values()))

    def pack(self) -> Iterator[tuple[bytes, int]]:
        if self.epoch_floor:
            yield pack_runs(b"", [(EPOCH_FLOOR_KEY, encode_epoch_floor(self.epoch_floor))]), 1
        values = ((name, self.committed.get(name)) for name in list(self.committed))
        yield from pack_parts((encode_key(name), value) for name, value in values if value is not None)

    def unpack(self, run: Run) -> None:
        for key, value in run.pairs:
            self.replay(key, value)

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        self._serves = True
        self._left.extend(self.open)
        self._expiry.may_have_left(self.committed.tenants())
        self._timers.set(_Timer.TAKE_UP, now.monotonic_s)
        self._timers.set(_Timer.TIMEOUTS, now.monotonic_s + self._config.timeouts_interval_ms / 1000)
        self._timers.set(_Timer.EXPIRY, now.monotonic_s + self._config.expired_ids_interval_ms / 1000)
        return []

    def next_deadline(self) -> float | None:
        return self._timers.first() if self._serves else None

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        for timer in self._timers.take_due(now.monotonic_s, _TIMER_LOOKS):
            if timer is _Timer.TAKE_UP:
                return self._take_up_some(now)
            if timer is _Timer.TIMEOUTS:
                return self._abort_overdue(now)
            return self._expire_ids(now)
        return []

    def take_answers(self) -> list[Answer]:
        return []

    def take_acts(self) -> list[object]:
        """Markers to be written for the records that were replayed since the last call."""
        acts, self._acts = self._acts, []
        return acts

    def put_back(self, acts: list[object]) -> None:
        self._acts += self._prepared.wanted(acts, self.epoch_floor)

    def find_acts(self, now: Now) -> None:
        """The markers of loaded transactions need no room in the log of their coordinator."""
        self._take_up_some(now, has_room=False)

    # time --------------------------------------------------------------------------------------------------

    def _take_up_some(self, now: Now, *, has_room: bool = True) -> list[CoordinatorRecord]:
        """Prepared transactions of other coordinators may lack partitions: those are complete, which needs a record."""
        records: list[CoordinatorRecord] = []
        partitions = 0
        for _ in range(min(len(self._left), self._config.transactions_per_turn_max)):
            transactional_id = self._left[0]
            unread = self.unread_value(transactional_id)
            if partitions and unread is not None and len(unread) > LONG_VALUE_BYTES:
                break
            self._left.popleft()
            if unread is not None:
                transaction = decode_value(unread)
                if transaction.state.is_prepared and not transaction.partitions:
                    if not has_room:
                        self._left.append(transactional_id)
                        continue
                    records.append(self._record(transactional_id, completed(transaction, now.wall_ms)))
                    continue
                self._take_up(transactional_id, transaction)
                partitions += transaction.partition_count
            if partitions >= self._config.partitions_per_turn_max:
                break
        if self._left:
            self._timers.set(_Timer.TAKE_UP, now.monotonic_s + TAKE_UP_TURN_S)
        return records

    def _abort_overdue(self, now: Now) -> list[CoordinatorRecord]:
        """Fence producers whose transaction is past its timeout."""
        records: list[CoordinatorRecord] = []
        pause_s = self._config.timeouts_interval_ms / 1000
        partitions = 0
        for transactional_id in self._timeouts.take_due(now.wall_ms / 1000, self._config.transactions_per_turn_max):
            transaction = self.open.get(transactional_id)
            if transaction is not None and transaction.state is TransactionState.ONGOING:
                self._timeouts.set(transactional_id, now.wall_ms / 1000 + pause_s)  # the record's replay cancels it
                fenced = self._fenced(transactional_id, transaction, None, now)
                if fenced is not None:
                    records.append(self._record(transactional_id, fenced))
                    partitions += transaction.partition_count
            if partitions >= self._config.partitions_per_turn_max:
                break
        more = self._timeouts.has_due(now.wall_ms / 1000)
        self._timers.set(_Timer.TIMEOUTS, now.monotonic_s + (TAKE_UP_TURN_S if more else pause_s))
        return records

    def _fenced(
        self,
        transactional_id: str,
        transaction: Transaction,
        fresh_id: int | None,
        now: Now,
        *,
        removal: bool = False,
    ) -> Transaction | None:
        """None if it must wait: another partition may serve it soon, or it needs a producer id, which is asked for."""
        if not self._is_served(transactional_id):
            return None
        fenced = fence(transaction, fresh_id, now.wall_ms, new_protocol=self._is_new)
        if fenced is NEEDS_ID:
            self._wants_id(transactional_id, removal)
            return None
        return fenced if fenced.partitions else completed(fenced, now.wall_ms)

    def fence_with(
        self, transactional_id: str, fresh_id: int, now: Now, *, removal: bool
    ) -> Decision[CoordinatorRecord, None]:
        """The producer id that `wants_id` asked for. It is not used if the transaction has ended meanwhile, or there is
        a later one, which is not past its timeout. Those of deleted tenants do not wait for theirs."""
        transaction = self.open.get(transactional_id)
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            return Decision(None)
        if not removal and transaction.start_ms + transaction.timeout_ms > now.wall_ms:
            return Decision(None)
        fenced = self._fenced(transactional_id, transaction, fresh_id, now)
        return Decision(None, [] if fenced is None else [self._record(transactional_id, fenced)])

    def _expire_ids(self, now: Now) -> list[CoordinatorRecord]:
        records, more = self._expiry.due(now.wall_ms)
        pause_s = TAKE_UP_TURN_S if more else self._config.expired_ids_interval_ms / 1000
        self._timers.set(_Timer.EXPIRY, now.monotonic_s + pause_s)
        return records

    # moves -------------------------------------------------------------------------------------------------

    def keeping_changed(self, prefix: str, now: Now) -> list[CoordinatorRecord]:
        """`keeping_of` may have changed for ids with this prefix, a tenant's: leftovers are removed soon."""
        tenant = tenant_of(prefix)
        self._expiry.may_have_left(() if tenant is None else (tenant,))
        if self._serves:
            self._timers.set(_Timer.EXPIRY, now.monotonic_s + TAKE_UP_TURN_S)
        return []

    def open_transaction(self, transactional_id: str) -> Transaction | None:
        """The id's open transaction; None if it has none."""
        if transactional_id not in self.open:
            return None
        return self.open[transactional_id] or decode_value(self.committed[transactional_id])

    def unread_value(self, transactional_id: str) -> bytes | None:
        """The value of an open transaction that is not taken up yet, which must be decoded first; else None."""
        return self.committed[transactional_id] if self.open.get(transactional_id, _TAKEN_UP) is None else None

    def reading_cost(self, transactional_id: str) -> int:
        """Units of `common.pacing` that it takes to read the id's state."""
        unread = self.unread_value(transactional_id)
        return 0 if unread is None else decoding_cost(unread)

    def recording_cost(self, transactional_id: str) -> int:
        """That it takes to change the state: the record names all partitions again."""
        return encoding_cost(self.committed.get(transactional_id, b""))

    # requests ----------------------------------------------------------------------------------------------

    @property
    def _is_new(self) -> bool:
        return self._version() >= NEW_PROTOCOL_VERSION

    def _is_served(self, transactional_id: str) -> bool:
        return self._keeping_of(transactional_id) is Keeping.SERVED

    def find(self, transactional_id: str) -> Transaction | None:
        """The id's state, which is taken up; None if it is unknown. Raises ProtocolError: INVALID_REQUEST,
        NOT_COORDINATOR."""
        if not local_name(transactional_id):
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        if not self._is_served(transactional_id):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        unread = self.unread_value(transactional_id)
        if unread is not None:
            self._take_up(transactional_id, decode_value(unread))
        value = self.committed.get(transactional_id)
        return (
            None
            if value is None
            else self.open.get(transactional_id) or self._decided.transaction(transactional_id, value)
        )

    def _get(self, transactional_id: str) -> Transaction:
        held = self.find(transactional_id)
        if held is None:
            raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return held

    def init_producer_id(self, request: InitProducer, fresh_id: int | None, now: Now) -> TransactionDecision:
        """The producer, or the error of a decision that has records: an ongoing transaction is aborted first. NEEDS_ID:
        decide again with a new producer id."""
        check_init(request, self._config)
        held = self.find(request.transactional_id)
        step: Step | NeedsId
        if held is not None:
            step = init_step(held, request, fresh_id, now.wall_ms, new_protocol=self._is_new)
        else:
            tenant = tenant_of(request.transactional_id)
            ids, id_bytes = self.committed.count(tenant), self.committed.id_bytes(tenant)
            self._limits_of(tenant).check_new_id(ids, id_bytes, bytes_of_id(request.transactional_id))
            step = NEEDS_ID if fresh_id is None else first_step(request, fresh_id, now.wall_ms)
        return self._decision(request.transactional_id, step, now)

    def add_partitions(self, request: AddPartitions, now: Now) -> Decision[CoordinatorRecord, None]:
        """Raises TRANSACTION_ABORTABLE beyond a limit: the client can abort and go on; COORDINATOR_LOAD_IN_PROGRESS,
        which every client repeats, while the tenant's groups are about to move."""
        held = self._get(request.transactional_id)
        tenant = tenant_of(request.transactional_id)
        limits = self._limits_of(tenant)
        joined = with_partitions(held, request, now.wall_ms, limits)
        if joined is None:
            return Decision(None)
        if request.transactional_id not in self.open and self.open.count(tenant) >= limits.open:
            raise ProtocolError(ErrorCode.TRANSACTION_ABORTABLE, "too many open transactions")
        begins = held.state is not TransactionState.ONGOING
        begins_offsets = GROUP_TOPIC in joined.partitions and (begins or GROUP_TOPIC not in held.partitions)
        if begins or begins_offsets:
            phase = self._keys_phase_of(request.transactional_id)
            if (begins and phase is KeysPhase.HOLDING) or (begins_offsets and phase in GROUPS_HELD_BACK):
                raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the groups of a tenant are about to move")
        return Decision(None, [self._record(request.transactional_id, joined)])

    def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> tuple[ErrorCode, ...]:
        """One code per partition, in order. Raises errors of them all."""
        return verified(self._get(transactional_id), producer_id, producer_epoch, partitions)

    def end(self, request: EndTransaction, fresh_id: int | None, now: Now) -> TransactionDecision:
        step = end_step(self._get(request.transactional_id), request, fresh_id, now.wall_ms)
        return self._decision(request.transactional_id, step, now)

    def complete(self, written: Sequence[MarkersToWrite], now: Now) -> Decision[CoordinatorRecord, None]:
        """All markers of these transactions are written. Those that are complete already are passed over, also where
        the producer's next transaction is prepared by now."""
        records: list[CoordinatorRecord] = []
        for transactional_id, serial in dict.fromkeys((one.transactional_id, one.serial) for one in written):
            held = self.open.get(transactional_id)
            if held is not None and self._prepared.is_newest(transactional_id, serial):
                records.append(self._record(transactional_id, completed(held, now.wall_ms)))
        return Decision(None, records)

    def remove_ids(self, prefixes: tuple[str, ...], most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        """Take a step towards the removal of at most `most` ids of deleted tenants: abort what is ongoing, then remove.
        Returns the number of steps. Raises CONCURRENT_TRANSACTIONS while ids are left, and those that it has looked at
        are prepared, or wait to be taken up."""
        return self._removals.step(prefixes, most, now)

    def _removal(self, transactional_id: str, now: Now) -> CoordinatorRecord | None:
        """The next record towards the removal of an id; None while it must wait. What another partition has, and ends,
        is removed at once."""
        if transactional_id not in self.open or self._keeping_of(transactional_id) is Keeping.FOREIGN:
            return transaction_record(transactional_id, None)
        held = self.open[transactional_id]
        if held is None or held.state.is_prepared:
            return None
        fenced = self._fenced(transactional_id, held, None, now, removal=True)
        return None if fenced is None else self._record(transactional_id, fenced)

    def list_transactions(
        self, wanted: TransactionFilter, now: Now, among: Iterable[str] | None = None
    ) -> Work[list[ListedTransaction]]:
        """`among`: only these ids. A tenant's costs only its own ids. They may change meanwhile. Ids that are handed
        over are shown by both sides: otherwise, while brokers hear of it one after another, neither may have them, and
        an open transaction would pass for one that no coordinator knows."""
        held = self.committed.with_prefix(wanted.prefix) if among is None else among
        ids = (name if self._keeping_of(name) is not Keeping.FOREIGN else None for name in held)
        return listed(ids, self.committed, self.open, wanted, now.wall_ms)

    def _decision(self, transactional_id: str, step: Step | NeedsId, now: Now) -> TransactionDecision:
        if step is NEEDS_ID:
            return Decision(NEEDS_ID)
        transaction = step.transaction
        if transaction is None:
            return Decision(step.reply)
        if transaction.state.is_prepared and not transaction.partitions:
            transaction = completed(transaction, now.wall_ms)
        return Decision(step.reply, [self._record(transactional_id, transaction)])

    def _record(self, transactional_id: str, transaction: Transaction) -> CoordinatorRecord:
        """Raises TRANSACTION_ABORTABLE for a transaction that the log cannot record. Its later records are hardly
        longer than those with which partitions join."""
        value = encode_value(transaction, flexible=self._version() > 0)
        if transaction.state is TransactionState.ONGOING and len(value) > self._config.record_bytes_max:
            raise ProtocolError(ErrorCode.TRANSACTION_ABORTABLE, "the partitions of one transaction fit into no record")
        self._decided.add(value, transaction)
        return transaction_record(transactional_id, value)


_TAKEN_UP = Transaction(-1, -1, 0)
