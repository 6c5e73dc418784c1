"""Every interleaving of batches, coordinators' answers, markers, epochs, leaderships and truncations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from broker.partitions.transactional_appends import LedTransactions, Marker, Permission, TransactionalAppends
from common.errors import ErrorCode, ProtocolError
from records.batch import BatchHeader, ProduceLimits, check_produced, read_header
from records.control import EndMarker, read_marker
from storage.log.partition_log import Appended, PartitionLog
from storage.producers.producer_state import ProducerStates
from tests.broker.transaction_lab import TXN_ID, of_transaction

NOW_MS = 1_700_000_000_000
PRODUCERS = st.integers(1, 2)
EPOCHS = st.integers(0, 4)


class MemoryLog:
    """The batches' headers and markers, with a log's producers."""

    def __init__(self) -> None:
        self.producers = ProducerStates(1 << 40, 100)
        self.batches: list[tuple[BatchHeader, EndMarker | None]] = []
        self.log_end_offset = 0
        self.barred: str | None = None

    def check_admits(self, size: int) -> None:
        """It has room."""
        if self.barred is not None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, self.barred)

    def cut(self, offset: int) -> None:
        """The producers remain those from before, until `read`."""
        self.log_end_offset = min(self.log_end_offset, offset)
        self.batches = [one for one in self.batches if one[0].base_offset < self.log_end_offset]
        self.producers.cut(0, self.log_end_offset)
        self.barred = "unread"

    def read(self) -> None:
        read = ProducerStates(1 << 40, 100)
        for header, ended in self.batches:
            read.update(header, ended)
        self.producers.adopt(read)
        self.barred = None

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer's last batch is no marker."""
        last = [ended for header, ended in self.batches if header.producer_id == producer_id][-1:]
        return last == [None]

    def first_unstable(self, high_watermark: int) -> int | None:
        """Where the first transaction begins whose marker is not here, or not committed."""
        first: dict[int, int] = {}
        for header, ended in self.batches:
            if ended is None:
                first.setdefault(header.producer_id, header.base_offset)
            elif header.base_offset < high_watermark:
                first.pop(header.producer_id, None)
        return min(first.values(), default=None)

    def append(self, view: memoryview, leader_epoch: int) -> Appended:
        header = read_header(view, 0).stamped(self.log_end_offset, leader_epoch)
        found = read_marker(view, 0, header.size) if header.is_control else None
        self.producers.update(header, found)
        self.batches.append((header, found))
        self.log_end_offset = header.next_offset
        return Appended(header.base_offset, header.next_offset, -1, False)


VOID = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE)


class LeaderOfOne:
    """A partition that may lose and win its leadership; its followers are as far as the test says."""

    def __init__(self) -> None:
        self.memory = MemoryLog()
        self.log = cast(PartitionLog, self.memory)
        self.leader_epoch = 1
        self.epoch_start_offset = 0
        self.high_watermark = 0
        self.led = LedTransactions(0)

    @property
    def transactions(self) -> TransactionalAppends:
        return TransactionalAppends(self, self.led)

    def lead_again(self, *, stepped_back: bool = False) -> None:
        """`stepped_back`: in the same epoch, after it has waited for the tier."""
        self.leader_epoch += not stepped_back
        self.epoch_start_offset = self.memory.log_end_offset
        self.led = LedTransactions(self.epoch_start_offset)

    def cut(self, offset: int) -> None:
        self.memory.cut(offset)
        self.high_watermark = min(self.high_watermark, self.memory.log_end_offset)

    def commit(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.memory.log_end_offset))

    def last_marker_end(self, producer_id: int) -> int:
        ends = [one.next_offset for one, ended in self.memory.batches if ended and one.producer_id == producer_id]
        return max(ends, default=0)

    def check_appendable(self, acks: int) -> None:
        """It always leads."""

    def check_batch(self, view: memoryview, at: int, end: int, now_ms: int, *, transactional: bool) -> BatchHeader:
        return check_produced(view, at, end, ProduceLimits(), now_ms, transactional=transactional)

    def find_repeated(self, header: BatchHeader) -> Appended | None:
        self.memory.check_admits(0)
        try:
            known = self.log.producers.check(header)
        except ProtocolError as error:
            if error.code is ErrorCode.UNKNOWN_PRODUCER_ID:
                return None
            raise
        return None if known is None else Appended(known.base_offset, known.next_offset, -1, True)

    def append_batch(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader | None,
        now_ms: int,
    ) -> Appended:
        return self.memory.append(view[at:end], self.leader_epoch)

    def note_refusal(self) -> None:
        """It keeps no time."""


@contextmanager
def refused(*codes: ErrorCode) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        if error.code not in codes:
            raise


class Interleavings(RuleBasedStateMachine):
    """`void` are the permissions whose transaction a marker has ended: they must not be good for a batch. All others of
    this leadership and the newest epoch must be, also those that were asked for before the marker of the transaction
    before, and whatever a stranger's transactional id claims to be meanwhile: its coordinator confirms nothing.

    A marker, also a repeated one, is acknowledged when it is committed and no later, but that one of an earlier leader
    waits for all that was there when this leadership began. While the producers are those from before a truncation,
    everything is refused for a while, and no more is stable than the log says."""

    permissions = Bundle("permissions")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.leader = LeaderOfOne()
        self.newest = {1: -1, 2: -1}
        self.begun: dict[Permission, LedTransactions] = {}  # in which leadership
        self.void: set[Permission] = set()
        self.sequences: dict[tuple[int, int], int] = {}
        self.markers: list[Marker] = []

    def _refused(self, *codes: ErrorCode) -> AbstractContextManager[None]:
        if self.leader.memory.barred is None:
            return refused(*codes)
        return refused(ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @rule(target=permissions, producer=PRODUCERS, epoch=EPOCHS, adds=st.booleans())
    def begin(self, producer: int, epoch: int, adds: bool) -> Permission | None:
        with self._refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            permission = self.leader.transactions.begin(TXN_ID, producer, epoch, adds=adds)
            assert epoch >= self.newest[producer]
            self.newest[producer] = epoch
            self.begun.setdefault(permission, self.leader.led)
            return permission
        assert epoch < self.newest[producer] or self.leader.memory.barred is not None
        return None

    @rule(permission=permissions)
    def all_are_told(self, permission: Permission | None) -> None:
        """Nothing waits for the coordinator's confirmation any more."""
        if permission is not None:
            self.leader.transactions.grant(permission)

    @rule(target=claims, producer=PRODUCERS, epoch=st.integers(0, 32_767), adds=st.booleans(), shared=st.booleans())
    def claim(self, producer: int, epoch: int, adds: bool, shared: bool) -> Permission | None:
        with self._refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            claimed = self.leader.transactions.begin("stranger", producer, epoch, adds=adds, is_shared=shared)
            open_here = self.leader.log.producers.has_open_transaction(producer, epoch)
            assert not claimed.is_granted or (open_here and not shared), "no coordinator has confirmed it"
            assert claimed not in self.begun, "it has a question of its own"
            return claimed
        return None

    @rule(claimed=claims)
    def refuse(self, claimed: Permission | None) -> None:
        if claimed is not None and not claimed.is_granted:
            self.leader.transactions.withdraw(claimed)

    @rule(permission=permissions)
    def append_with(self, permission: Permission | None) -> None:
        """The coordinator has confirmed, sooner or later."""
        if permission is None:
            return
        producer, epoch = permission.producer_id, permission.producer_epoch
        is_earlier = self.begun[permission] is not self.leader.led
        is_void = permission in self.void or is_earlier
        is_void = is_void or epoch < self.newest[producer] or self.leader.memory.barred is not None
        before = self.leader.log.log_end_offset
        codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER,) if is_earlier else VOID  # its client sends the batch again
        self._append(producer, epoch, permission, codes)
        assert (self.leader.log.log_end_offset == before) is is_void, "a permission ends with its transaction"

    @rule(producer=PRODUCERS, epoch=EPOCHS)
    def append_without(self, producer: int, epoch: int) -> None:
        """As the handler does: only within an open transaction."""
        if not self.leader.transactions.needs_permission(TXN_ID, producer, epoch):
            self._append(producer, epoch, None)

    def _append(
        self, producer: int, epoch: int, permission: Permission | None, codes: tuple[ErrorCode, ...] = VOID
    ) -> None:
        sequence = self.sequences.get((producer, epoch), 0)
        data = bytearray(of_transaction(sequence, producer_id=producer, epoch=epoch))
        with self._refused(*codes), memoryview(data) as view:
            self.leader.transactions.append_produced(data, view, 0, len(data), -1, NOW_MS, permission)
            assert epoch >= self.newest[producer]
            self.newest[producer] = epoch
            self.sequences[producer, epoch] = sequence + 1

    @rule(producer=PRODUCERS, epoch=EPOCHS, commit=st.booleans(), coordinator=st.integers(1, 3), new=st.booleans())
    def end(self, producer: int, epoch: int, commit: bool, coordinator: int, new: bool) -> None:
        self.markers.append(Marker(producer, epoch, commit, coordinator, new))
        self._end(self.markers[-1])

    @precondition(lambda self: self.markers)
    @rule(pick=st.integers(1, 4))
    def end_again(self, pick: int) -> None:
        self._end(self.markers[-min(pick, len(self.markers))])

    def _end(self, marker: Marker) -> None:
        producer, epoch, _, _, new = marker
        producers = self.leader.log.producers
        known, was_open = producers.epoch_of(producer), producers.has_open_transaction(producer, epoch)
        before = self.leader.log.log_end_offset
        with self._refused(ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED):
            marked = self.leader.transactions.append_marker(marker, NOW_MS)
            assert self.leader.log.log_end_offset == before + (not marked.is_repeated)
            last_end, begun, committed = (
                self.leader.last_marker_end(producer), self.leader.epoch_start_offset, self.leader.high_watermark,
            )  # fmt: skip
            assert marked.end_offset >= last_end or committed >= last_end, "never before it is committed"
            assert marked.end_offset <= max(last_end, begun), "and no later"
            assert marked.is_repeated or marked.end_offset == last_end == before + 1
            assert not self.leader.memory.is_open(producer), "what is acknowledged is in the log"
            assert epoch >= known
            assert not (new and was_open), "the new protocol's markers exceed"
            last_ended = epoch - 1 if new else epoch
            self.void |= {one for one in self.begun if one.producer_id == producer and one.producer_epoch <= last_ended}
            if self.newest[producer] <= last_ended:
                self.newest[producer] = known
            self.newest[producer] = max(self.newest[producer], known if marked.is_repeated else epoch)
            return
        assert self.leader.log.log_end_offset == before

    @rule(offset=st.integers(0, 40))
    def commit(self, offset: int) -> None:
        self.leader.commit(offset)

    @rule(stepped_back=st.booleans())
    def lead_again(self, stepped_back: bool = False) -> None:
        self.leader.lead_again(stepped_back=stepped_back)
        self.newest = {producer: self.leader.log.producers.epoch_of(producer) for producer in self.newest}

    @precondition(lambda self: self.leader.memory.barred is None and self.leader.memory.batches)
    @rule(count=st.integers(1, 3), pick=st.integers(1, 2))
    def follow_and_lead_again(self, count: int, pick: int) -> None:
        """The leader in between lacked the last batches; elected out of sync, it lacked what was committed. The
        coordinator sends a marker again."""
        self.leader.cut(max(self.leader.memory.log_end_offset - count, 0))
        self.lead_again()
        if self.markers:
            self._end(self.markers[-min(pick, len(self.markers))])

    @precondition(lambda self: self.leader.memory.barred is not None)
    @rule()
    def read_producers(self) -> None:
        memory = self.leader.memory
        memory.read()
        self.newest = {producer: memory.producers.epoch_of(producer) for producer in self.newest}
        batches = [header for header, ended in memory.batches if ended is None]
        self.sequences = {(one.producer_id, one.producer_epoch): one.last_sequence + 1 for one in batches}

    @invariant()
    def log_is_in_order(self) -> None:
        """Epochs of a producer never fall, nor do its coordinators', and the last stable offset is the first of what
        is open."""
        epochs: dict[int, int] = {}
        coordinators: dict[int, int] = {}
        log = self.leader.memory
        for header, ended in log.batches:
            producer = header.producer_id
            assert header.producer_epoch >= epochs.get(producer, -1)
            epochs[producer] = header.producer_epoch
            if ended is None:
                continue
            assert ended.coordinator_epoch >= coordinators.get(producer, -1)
            coordinators[producer] = ended.coordinator_epoch
        high_watermark = self.leader.high_watermark
        log.producers.on_high_watermark(high_watermark)
        shown, right = log.producers.first_unstable_offset, log.first_unstable(high_watermark)
        if log.barred is None:
            assert shown == right
        else:
            assert right is None or min(high_watermark, right if shown is None else shown) <= right


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
