"""What must hold after every event, one class each. They read nodes, disks and histories, and change nothing.

A watcher (`cluster_watch.py`) notices what an event changed and tells those whom it concerns, so that an event that
changes nothing costs next to nothing. The word *committed* means: some leader's high watermark has passed it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from tests.sim.history import Acknowledged, History, Shown, TopicPartition
from tests.sim.loop import SimulationFailure
from tests.sim.replica_files import Batch, ReplicaFiles


class InvariantBroken(SimulationFailure):
    """`invariant` names the class that found it."""

    def __init__(self, invariant: object, text: str) -> None:
        super().__init__(f"{type(invariant).__name__}: {text}")
        self.invariant = type(invariant).__name__


class ReplicaState(NamedTuple):
    """One replica as its broker holds it at one moment."""

    node: str
    broker_id: int
    life: int
    partition: TopicPartition
    leader_epoch: int
    is_leader: bool
    high_watermark: int
    end_offset: int
    isr: tuple[int, ...]  # as committed, to the knowledge of a leader; empty on a follower
    min_insync: int


class CommittedLog:
    """What is committed of each partition, as one list of batches; everything else is compared with it."""

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, list[Batch]] = {}
        self._ends: dict[TopicPartition, list[int]] = {}
        self._epochs: dict[TopicPartition, list[int]] = {}  # of the leaders that committed them
        self._bases: dict[TopicPartition, list[int]] = {}
        self._by_offset: dict[TopicPartition, dict[int, Batch]] = {}
        self.floors: dict[TopicPartition, int] = {}
        """Below this offset no disk needs to hold anything: it is in the tier, or the log was made to begin there."""

    def end(self, partition: TopicPartition) -> int:
        batches = self.batches.get(partition)
        return batches[-1].next_offset if batches else 0

    def at(self, partition: TopicPartition, base_offset: int) -> Batch | None:
        return self._by_offset.get(partition, {}).get(base_offset)

    def end_before(self, partition: TopicPartition, leader_epoch: int) -> int:
        """Up to where leaders of earlier epochs have committed; what later ones did, a late leader need not have."""
        epochs, ends = self._epochs.get(partition, []), self._ends.get(partition, [])
        index = len(epochs)
        while index and epochs[index - 1] >= leader_epoch:
            index -= 1
        return ends[index - 1] if index else 0

    def extend(self, partition: TopicPartition, batch: Batch, leader_epoch: int) -> None:
        self.batches.setdefault(partition, []).append(batch)
        self._epochs.setdefault(partition, []).append(leader_epoch)
        self._ends.setdefault(partition, []).append(batch.next_offset)
        self._bases.setdefault(partition, []).append(batch.base_offset)
        self._by_offset.setdefault(partition, {})[batch.base_offset] = batch

    def between(self, partition: TopicPartition, begin: int, end: int) -> list[Batch]:
        """Batches that begin in [begin, end)."""
        bases = self._bases.get(partition, [])
        return self.batches.get(partition, [])[bisect.bisect_left(bases, begin) : bisect.bisect_left(bases, end)]

    def difference(self, partition: TopicPartition, files: ReplicaFiles, until: int) -> str:
        """Why a replica does not hold the committed log up to `until`; empty when it does."""
        own, held = self.batches.get(partition, []), files.look().batches
        count = bisect.bisect_right(self._ends.get(partition, []), until)
        if files.first_offset > (floor := self.floors.get(partition, 0)):
            return f"it begins at {files.first_offset}; what is below {floor} may be missing"
        begin = max(files.first_offset, files.verified_end)
        index = bisect.bisect_left(self._bases.get(partition, []), begin, 0, count)
        at = bisect.bisect_left(files.bases, own[index].base_offset) if index < count else 0
        for batch, there in zip(own[index:count], held[at:], strict=False):
            if there != batch:
                return f"it holds {tell(there)} where {tell(batch)} is committed"
            files.verified_end = batch.next_offset
        if count and files.end_offset < own[count - 1].next_offset:
            return f"it ends at {files.end_offset} where {until} is committed"
        return ""


def tell(batch: Batch) -> str:
    return (
        f"[{batch.base_offset}, {batch.next_offset}) of epoch {batch.leader_epoch}, producer {batch.producer_id} "
        f"sequence {batch.base_sequence}, CRC {batch.crc:08x}"
    )


class OneLeaderPerEpoch:
    def __init__(self) -> None:
        self._leaders: dict[tuple[TopicPartition, int], tuple[str, int]] = {}

    def led(self, state: ReplicaState) -> None:
        holder = self._leaders.setdefault((state.partition, state.leader_epoch), (state.node, state.life))
        if holder[0] != state.node:
            raise InvariantBroken(self, f"{state.partition} epoch {state.leader_epoch}: {holder[0]} and {state.node}")


class LeaderHoldsAllCommitted:
    """Whoever begins to lead has every record that was committed in an earlier epoch."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed

    def led(self, state: ReplicaState, files: ReplicaFiles) -> None:
        until = self._committed.end_before(state.partition, state.leader_epoch)
        if difference := self._committed.difference(state.partition, files, until):
            raise InvariantBroken(self, f"{state.node} {state.partition} epoch {state.leader_epoch}: {difference}")


class HighWatermarkNeverFalls:
    """Within one leader epoch, on any replica; but a follower's does with a log that is cut, as one is that had only
    begun from the tier when its machine lost power. What a cut gives up is looked at by itself."""

    def moved(self, before: ReplicaState, state: ReplicaState) -> None:
        same = (before.life, before.leader_epoch) == (state.life, state.leader_epoch)
        was_cut = not state.is_leader and state.end_offset < before.high_watermark
        if same and state.high_watermark < before.high_watermark and not was_cut:
            text = f"from {before.high_watermark} to {state.high_watermark} in epoch {state.leader_epoch}"
            raise InvariantBroken(self, f"{state.node} {state.partition}: {text}")


class CommittedRecordsStay:
    """A leader's high watermark passes only what fits what was committed before; a follower's is never ahead of it."""

    def __init__(self, committed: CommittedLog, sequences: SequencesWithoutGap) -> None:
        self._committed, self._sequences = committed, sequences
        self.told: Callable[[TopicPartition, ReplicaFiles, int], None] = lambda partition, files, number: None
        """Called with each batch that is newly committed, its place in the files."""

    def advanced(self, state: ReplicaState, files: ReplicaFiles) -> None:
        partition, until = state.partition, state.high_watermark
        held = files.look().batches
        if not state.is_leader:  # its bytes may still wait for a slow disk: then it does not acknowledge them
            until = min(until, files.end_offset)
        if files.end_offset < until:
            text = f"high watermark {until} is past what the disk holds, {files.end_offset}"
            raise InvariantBroken(self, f"{state.node} {partition}: {text}")
        end = self._committed.end(partition)
        if difference := self._committed.difference(partition, files, min(until, end)):
            raise InvariantBroken(self, f"{state.node} {partition}: {difference}")
        if state.high_watermark > end and not state.is_leader:
            text = f"a follower's high watermark is {state.high_watermark}, no leader's was over {end}"
            raise InvariantBroken(self, f"{state.node} {partition}: {text}")
        index = bisect.bisect_left(files.bases, end)
        while index < len(held) and held[index].next_offset <= until:
            self._committed.extend(partition, held[index], state.leader_epoch)
            self._sequences.committed(partition, held[index])
            self.told(partition, files, index)
            index += 1
        if self._committed.end(partition) < until:
            raise InvariantBroken(self, f"{state.node} {partition}: high watermark {until} lies within a batch")

    def cut(self, node: str, partition: TopicPartition, before: list[Batch], end: int) -> None:
        """A replica that held `before` now ends at `end`: what it gave up must not have been committed."""
        for batch in before:
            if batch.next_offset > end and self._committed.at(partition, batch.base_offset) == batch:
                raise InvariantBroken(self, f"{node} {partition}: it cuts its log to {end} and gives up {tell(batch)}")


class SequencesWithoutGap:
    """Of each idempotent producer every record is committed once, in the order of its sequences, which begin at 0 in
    each epoch. No epoch follows a later one."""

    def __init__(self) -> None:
        self._next: dict[tuple[TopicPartition, int], tuple[int, int]] = {}  # epoch and sequence
        self._last: dict[TopicPartition, dict[int, tuple[int, int]]] = {}  # epoch and offset

    def last_offsets(self, partition: TopicPartition) -> Iterable[tuple[int, int, int]]:
        """Each producer's last committed epoch and offset; none once a marker has begun another epoch."""
        return ((producer_id, *last) for producer_id, last in self._last.get(partition, {}).items())

    def committed(self, partition: TopicPartition, batch: Batch) -> None:
        if batch.producer_id < 0:
            return
        key = (partition, batch.producer_id)
        epoch, expected = self._next.get(key, (batch.producer_epoch, 0))
        if batch.producer_epoch < epoch:
            raise InvariantBroken(self, f"{partition}: epoch {epoch} is known, {tell(batch)} is committed")
        if batch.producer_epoch > epoch:
            expected = 0
            self._last.get(partition, {}).pop(batch.producer_id, None)
        if batch.is_control:
            self._next[key] = (batch.producer_epoch, expected)
            return
        if batch.base_sequence < 0:  # offsets that are sent to a group in a transaction
            return
        if batch.base_sequence != expected:
            raise InvariantBroken(self, f"{partition}: sequence {expected} is due, {tell(batch)} is committed")
        self._next[key] = (batch.producer_epoch, expected + batch.next_offset - batch.base_offset)
        self._last.setdefault(partition, {})[batch.producer_id] = (batch.producer_epoch, batch.next_offset - 1)


class LeaderKnowsProducers:
    """Whoever begins to lead knows how far each idempotent producer had come, or it would take a batch twice.

    A producer of whose batches none is left above the log start may be unknown, as in Apache Kafka. A late leader need
    not know what was committed under those who have led after it. Of a producer's earlier epochs nothing is known.
    """

    def __init__(self, committed: CommittedLog, sequences: SequencesWithoutGap) -> None:
        self._committed = committed
        self._sequences = sequences

    def led(self, state: ReplicaState, known: Mapping[int, tuple[int, int]], log_start: int) -> None:
        """`known`: epoch and last offset of each producer that the leader knows."""
        until = self._committed.end_before(state.partition, state.leader_epoch)
        for producer_id, epoch, offset in self._sequences.last_offsets(state.partition):
            if log_start <= offset < until and known.get(producer_id, (-1, -1)) < (epoch, offset):
                text = f"producer {producer_id} came to {offset}, the leader knows {known.get(producer_id)}"
                raise InvariantBroken(self, f"{state.node} {state.partition} epoch {state.leader_epoch}: {text}")


class LogsBeginWhereTheyShould:
    """A leader disowns offsets below the log start or past the end alone, which the tier's state and what was asked
    for decide; and it never tells a log start that is not committed."""

    def __init__(self, committed: CommittedLog, history: History) -> None:
        self._committed, self._history = committed, history
        self._seen = [0, 0]

    def check(self, log_start: Callable[[TopicPartition], int]) -> None:
        history, seen = self._history, self._seen
        for item in history.out_of_range[seen[0] :]:
            begin, end = log_start(item.partition), self._committed.end(item.partition)
            if begin <= item.offset <= end:
                text = f"broker {item.node} does not have {item.offset} of [{begin}, {end})"
                raise InvariantBroken(self, f"{item.partition}: {text}")
        for partition, told in history.beginnings[seen[1] :]:
            if told > log_start(partition):
                text = f"the log is said to begin at {told}, committed is {log_start(partition)}"
                raise InvariantBroken(self, f"{partition}: {text}")
        self._seen = [len(history.out_of_range), len(history.beginnings)]


class InSyncReplicasHoldCommitted:
    """Every ISR and ELR member's disk holds all that is committed, alike, and at least min.insync.replicas disks do.

    `excused` are brokers that lost power and were not unfenced since: the controller does not know yet, or counts them
    in no ISR and ELR, whatever lists them from before.
    """

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed

    def advanced(self, state: ReplicaState, replicas: dict[int, ReplicaFiles], excused: Container[int]) -> None:
        """A leader has committed more, under the ISR that it knows."""
        partition, until = state.partition, state.high_watermark
        if len(state.isr) < state.min_insync:
            text = f"high watermark {until} with in-sync replicas {state.isr}, {state.min_insync} are due"
            raise InvariantBroken(self, f"{state.node} {partition}: {text}")
        holders = 0
        for broker, files in replicas.items():
            difference = self._committed.difference(partition, files, until)
            holders += not difference or (broker in state.isr and broker in excused)
            if difference and broker in state.isr and broker not in excused:
                text = f"replica {broker} is in the ISR {state.isr}: {difference}"
                raise InvariantBroken(self, f"{state.node} {partition}: {text}")
        if holders < state.min_insync:
            raise InvariantBroken(self, f"{state.node} {partition}: {holders} disks hold all up to {until}")

    def changed(self, partition: TopicPartition, broker: int, role: str, files: ReplicaFiles) -> None:
        """The controller has committed an ISR or ELR that holds `broker`."""
        if difference := self._committed.difference(partition, files, self._committed.end(partition)):
            raise InvariantBroken(self, f"{partition}: broker {broker} is in the {role}: {difference}")


class AcknowledgedIsCommitted:
    """When a producer hears of success, exactly its batch is committed at exactly that offset. It hears in order; one
    that was fenced may hear of its last batch after its successor has begun."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed
        self._last: dict[tuple[TopicPartition, int, int], int] = {}

    def acknowledged(self, item: Acknowledged) -> None:
        if item.base_offset < 0:
            return
        batch = self._committed.at(item.partition, item.base_offset)
        if batch is None:
            text = f"{self._committed.end(item.partition)} are committed"
            raise InvariantBroken(self, f"{item.partition}: offset {item.base_offset} is acknowledged, {text}")
        told = (item.crc, item.producer_id, item.base_sequence)
        if (batch.crc, batch.producer_id, batch.base_sequence) != told:
            text = f"sequence {item.base_sequence} is acknowledged at {item.base_offset}, where {tell(batch)} is"
            raise InvariantBroken(self, f"{item.partition}: {text}")
        key = (item.partition, item.producer_id, batch.producer_epoch)
        if item.base_offset <= self._last.get(key, -1):
            raise InvariantBroken(self, f"{item.partition}: {item.base_offset} is acknowledged out of order")
        self._last[key] = item.base_offset


class ShownIsCommitted:
    """What a consumer got is committed, and so it stays."""

    def __init__(self, committed: CommittedLog) -> None:
        self._committed = committed

    def shown(self, item: Shown) -> None:
        batch = self._committed.at(item.partition, item.base_offset)
        if batch is None or batch.crc != item.crc:
            found = tell(batch) if batch is not None else f"nothing past {self._committed.end(item.partition)}"
            text = f"broker {item.node} showed [{item.base_offset}, {item.next_offset}) CRC {item.crc:08x}"
            raise InvariantBroken(self, f"{item.partition}: {text}; committed is {found}")


class GroupsNeverGoBack:
    """Generations rise, a generation has one leader, and committed offsets do not fall."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen = [0, 0, 0]
        self._leaders: dict[tuple[str, int], str] = {}

    def check(self) -> None:
        history, seen = self._history, self._seen
        for joined in history.joins[seen[0] :]:
            if joined.generation < joined.expected:
                text = f"{joined.member} joined generation {joined.generation} after {joined.expected} was synced"
                raise InvariantBroken(self, f"{joined.group}: {text}")
        for synced in history.syncs[seen[1] :]:
            leader = self._leaders.setdefault((synced.group, synced.generation), synced.leader)
            if leader != synced.leader:
                text = f"generation {synced.generation} is led by {leader} and by {synced.leader}"
                raise InvariantBroken(self, f"{synced.group}: {text}")
        for fetched in history.offset_fetches[seen[2] :]:
            if fetched.offset < fetched.expected:
                text = f"{fetched.partition} is at {fetched.offset}, {fetched.expected} was acknowledged"
                raise InvariantBroken(self, f"{fetched.group}: {text}")
        self._seen = [len(history.joins), len(history.syncs), len(history.offset_fetches)]


class MetadataAgrees:
    """Every node's metadata at one offset is the same, and no term has two controllers that lead."""

    def __init__(self) -> None:
        self._prints: dict[int, tuple[int, str]] = {}
        self._leaders: dict[int, str] = {}

    def saw(self, node: str, offset: int, fingerprint: int) -> None:
        known = self._prints.setdefault(offset, (fingerprint, node))
        if known[0] != fingerprint:
            raise InvariantBroken(self, f"{node} and {known[1]} differ at offset {offset}")

    def led(self, node: str, term: int) -> None:
        holder = self._leaders.setdefault(term, node)
        if holder != node:
            raise InvariantBroken(self, f"term {term}: {holder} and {node}")

    @property
    def terms(self) -> int:
        return len(self._leaders)


class LoopsNeverBlock:
    """No sync of a file or directory on an event loop."""

    def check(self, node: str, blocking_sync_count: int) -> None:
        if blocking_sync_count:
            raise InvariantBroken(self, f"{node} waited for its device on the event loop")


class PowerPromise:
    """Which brokers have lost unflushed data that the rest of the ISR still has to make good.

    Any number of processes may die at any time. From a loss of power until every partition's ISR is whole again,
    fewer than min.insync.replicas brokers may lose theirs; the nemesis asks before it cuts the power. Where each
    write is flushed, all may. A disk that fails counts as well: its broker cannot vouch for what it held.
    """

    def __init__(self, min_insync: int, *, flushes_each: bool) -> None:
        self._min_insync, self._flushes_each = min_insync, flushes_each
        self.lost: dict[int, None] = {}  # until the ISR is whole
        self.unregistered: dict[int, int] = {}  # lost power; broker epoch that the metadata then showed
        self.failing: dict[int, None] = {}  # disks

    def allows(self, brokers: Iterable[int]) -> bool:
        return (self._flushes_each and not self.lost) or len({*self.lost, *brokers}) < self._min_insync

    def disk_fails(self, broker: int, fails: bool) -> None:
        if fails:
            self.lost[broker] = self.failing[broker] = None
        else:
            self.failing.pop(broker, None)

    def lost_power(self, broker: int, broker_epoch: int) -> None:
        if not self._flushes_each:
            self.lost[broker] = None
            self.unregistered[broker] = broker_epoch

    def registered(self, broker: int, broker_epoch: int) -> bool:
        """The broker has registered, and counts where it is listed; whether that follows a loss of power."""
        news = self.unregistered.get(broker, broker_epoch) != broker_epoch
        if news:
            del self.unregistered[broker]
        return news

    def isr_is_whole(self) -> None:
        if not self.unregistered and not self.failing:
            self.lost.clear()


class Coverage:
    """What happened in a run: a simulation in which nothing happens is green as well."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] += count
