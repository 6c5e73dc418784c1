"""Hands what is committed and what clients learn to the invariants of transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.coordination.transactions.records import decode_key
from broker.coordination.transactions.values import Transaction
from broker.partitions.partition import Partition
from kraft.topic_names import TRANSACTION_TOPIC
from records.batch import HEADER_BYTES, read_header
from records.control import MarkerKind, read_marker
from records.pairs import Pair, read_pairs
from tests.sim.history import History, TopicPartition
from tests.sim.invariants import CommittedLog, Coverage
from tests.sim.replica_files import Batch, ReplicaFiles
from tests.sim.transaction_history import Names, TransactionHistory, read_text
from tests.sim.transaction_invariants import (
    CopiedOnce,
    DecisionsAreRecorded,
    MarkersAgree,
    OffsetsCountWhenCommitted,
    PromisesAreKept,
    ReadersSeeTheCommitted,
    TierHoldsTheDecided,
    is_offsets,
)


class TransactionWatch:
    """One per run."""

    def __init__(
        self,
        history: History,
        transactions: TransactionHistory,
        committed: CommittedLog,
        coverage: Coverage,
        trace: Callable[[str], None],
        names: Names,
    ) -> None:
        self._names = names
        self._history, self._transactions = history, transactions
        self._committed, self._coverage, self._trace = committed, coverage, trace
        self.decisions = DecisionsAreRecorded(coverage.add)
        self.markers = MarkersAgree(self.decisions)
        self.promises = PromisesAreKept(self.decisions, self.markers)
        self.offsets = OffsetsCountWhenCommitted()
        self.copied = CopiedOnce(self.is_visible)
        self._readers = ReadersSeeTheCommitted(committed, self.markers)
        self._tier = TierHoldsTheDecided(self.markers)
        self._seen = [0, 0, 0, 0, 0]
        self._ends: dict[tuple[str, TopicPartition], int] = {}
        self._epochs: dict[TopicPartition, int] = {}  # the newest of a leader whose log has changed
        transactions.mark = self.offsets.mark

    def is_visible(self, partition: TopicPartition, base_offset: int) -> bool | None:
        """Whether readers of committed records see the batch; None while that is open."""
        batch = self._committed.at(partition, base_offset)
        if batch is None:
            return None
        return self.markers.outcomes.get((partition, base_offset)) if batch.is_transactional else True

    # brokers -----------------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition, batch: Batch, content: bytes) -> None:
        """A batch is committed; a broker may not know yet that its topic is deleted, and then it means nothing."""
        if self.decisions.is_gone(partition):
            return
        if partition[0] == TRANSACTION_TOPIC:
            for key, value in pairs_of(content):
                self.decisions.recorded(key, value)
                if value is not None:
                    self._tell_state(key)
        elif batch.is_control:
            commit = is_commit(content)
            self._coverage.add(f"markers: {'commit' if commit else 'abort'}")
            self._trace(f"{partition[0]}-{partition[1]}: commit {commit} of {batch.producer_id}/{batch.producer_epoch}")
            self.markers.marker(partition, batch, commit)
            if is_offsets(partition):
                self.offsets.marker(partition[1], batch.producer_id, commit)
        elif is_offsets(partition):
            if batch.is_transactional:
                self._coverage.add("pending offsets")
                self.markers.batch(partition, batch, None)
            self.offsets.records(partition[1], batch, pairs_of(content))
        elif self._is_data(partition[0]):
            self._data(partition, batch, content)
        for index in self._copies_of(partition):
            self.copied.check(index, (self._names.input, index), (self._names.output, index))

    def _is_data(self, topic: str) -> bool:
        return topic in (self._names.input, self._names.output) or topic.startswith(self._names.passing)

    def _copies_of(self, partition: TopicPartition) -> list[int]:
        return [partition[1]] if partition[0] in (self._names.input, self._names.output) else []

    def _tell_state(self, key: bytes) -> None:
        name = decode_key(key)
        if name is None:  # the floor of coordinator epochs
            self._coverage.add("floors of coordinator epochs")
            return
        state = self.decisions.states[name]
        self._coverage.add(f"recorded: {state.state.title}")
        places = " ".join(f"{topic}-{index}" for topic, indexes in state.partitions.items() for index in indexes)
        self._trace(f"{name} is {state.state.title}, {state.producer_id}/{state.producer_epoch}: {places}")

    def _data(self, partition: TopicPartition, batch: Batch, content: bytes) -> None:
        if batch.is_transactional:
            pairs = pairs_of(content)
            self.markers.batch(partition, batch, read_text(pairs[0][1] or b"")[0])
            if partition[0] == self._names.output:
                copied = (int(read_text(value or b"")[1]) for _, value in pairs)
                self.copied.output(partition[1], batch.base_offset, copied)
        if partition[0] == self._names.input:
            self.copied.input(partition[1], batch.base_offset, batch.next_offset - batch.base_offset)

    def appended(self, node: str, partition: Partition, files: ReplicaFiles) -> None:
        """The log of a leader has another end: its new markers must have been decided, committed or not. A deposed
        leader that has not heard of its successor may still append a marker that was on its way, which is never
        committed: the successor has one in its place, and the transaction may be complete."""
        key = (partition.topic, partition.index)
        before, self._ends[node, key] = self._ends.get((node, key), 0), partition.log.log_end_offset
        if key[0] == TRANSACTION_TOPIC or not partition.is_leader or self.decisions.is_gone(key):
            return
        newest = self._epochs[key] = max(self._epochs.get(key, 0), partition.leader_epoch)
        if partition.leader_epoch < newest:
            return
        batches = files.look().batches
        number = len(batches)
        while number and batches[number - 1].base_offset >= before:
            number -= 1
            if batches[number].is_control and batches[number].leader_epoch == partition.leader_epoch:
                self.markers.check_marker(key, batches[number], is_commit(files.content(number)))

    def end(self, partition: TopicPartition) -> int:
        """How far the partition is committed."""
        return self._committed.end(partition)

    def copied_to_tier(self, partition: TopicPartition, tier_end: int) -> None:
        self._tier.copied(partition, tier_end)

    # clients -----------------------------------------------------------------------------------------------

    def client_ran(self) -> None:
        heard, seen = self._transactions, self._seen
        lists = (heard.given, heard.ended, heard.reads, heard.offset_reads, heard.refused)
        counts = [len(each) for each in lists]
        if counts == seen:
            return
        self._seen = counts
        for given in heard.given[seen[0] :]:
            self.promises.given(given)
        for ended in heard.ended[seen[1] :]:
            self._coverage.add(f"acknowledged: {'commit' if ended.commit else 'abort'}")
            self.promises.end_acknowledged(ended)
        for read in heard.reads[seen[2] :]:
            self._readers.read(read)
        for offset in heard.offset_reads[seen[3] :]:
            self.offsets.told(offset)
        for refused in heard.refused[seen[4] :]:
            self.promises.refused(refused)


def pairs_of(content: bytes) -> list[Pair]:
    """Keys and values of an uncompressed batch."""
    pairs: list[Pair] = []
    read_pairs(content, HEADER_BYTES, len(content), read_header(content, 0).count, pairs)
    return pairs


def is_commit(content: bytes) -> bool:
    with memoryview(content) as view:
        marker = read_marker(view, 0, len(content))
    assert marker is not None
    return marker.kind is MarkerKind.COMMIT


def open_names(states: Mapping[str, Transaction]) -> list[str]:
    return [name for name, state in states.items() if state.state.is_open]
