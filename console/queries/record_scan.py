"""Reads records of a topic as a consumer does, a bounded step at a time; the place to go on from lies with the page.

Committed records are read with the list of aborted transactions. Behind the last stable offset follow the records that
are not decided yet. So each record is marked with what became of its transaction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from kafka.errors import KafkaError

from common.errors import ErrorCode
from common.settings import LONG_MAX
from console.access.trouble import EXPECTED, Trouble, trouble_of
from console.formats.record_filter import Filter
from console.queries.topics import Led, leaders_and_id
from records.batch import BatchHeader, iterate_batches
from records.control import MarkerKind, read_marker
from records.record import Record, decode_records, inflate_records
from tidelog.admin.admin_client import error_text
from tidelog.admin.library_client import AdminClient
from tidelog.admin.partition_offsets import EARLIEST, LATEST, offset_requests, offsets_in, offsets_of, portions
from tidelog.admin.transaction_doctor import Place
from wire.messages import FetchRequest, FetchResponse

BYTES_AT_ONCE = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
PARTITIONS_AT_ONCE, PARTITIONS_MAX = 20, 500
OFFSETS_AT_ONCE = 2_000
"""A request asks for some partitions, or for more of them that have no more than these offsets left together: a topic
of a thousand partitions with a few records each is read in one round, not in a dozen."""
FETCHES_AT_ONCE = 4  # so that no more than these answers are in memory
STEP_S = 1.5
WAIT_MS = 500
UNCOMMITTED, COMMITTED = 0, 1
ROWS_BYTES_MAX = 4 << 20

Positions = Mapping[int, int]
_Partition = FetchResponse.FetchableTopicResponse.PartitionData


class State(Enum):
    """What became of the transaction of a record. MARKER_…: the record is the end of one."""

    PLAIN = ""
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "not decided yet"
    MARKER_COMMIT = "end of a transaction: commit"
    MARKER_ABORT = "end of a transaction: abort"


class Found(NamedTuple):
    partition: int
    record: Record
    state: State
    producer_id: int

    @property
    def size(self) -> int:
        record = self.record
        return (
            len(record.key or b"") + len(record.value or b"") + sum(len(n) + len(v or b"") for n, v in record.headers)
        )


class Step(NamedTuple):
    """`next`: where each partition goes on; `looked_at` counts records. `trouble`: partitions that did not answer."""

    rows: Sequence[Found]
    next: Positions
    ends: Positions
    looked_at: int
    is_at_end: bool
    trouble: Sequence[str]


class Span(NamedTuple):
    """The first offset and the end of each partition that was wanted and answers. `led`: who led them then."""

    begins: Positions
    ends: Positions
    led: Led | None = None


def span(client: AdminClient, name: str, partitions: Sequence[int] | None) -> Span:
    """Raises Trouble and KafkaError."""
    led = leaders_and_id(client, name)
    wanted = _places(name, led.leaders, partitions)
    asked = offset_requests(wanted, EARLIEST), offset_requests(wanted, LATEST)
    answers = client.send_all([*asked[0], *asked[1]])
    begins, ends = offsets_in(answers[: len(asked[0])]), offsets_in(answers[len(asked[0]) :])
    both = [place for place in wanted if place in begins and place in ends]
    return Span({one.partition: begins[one] for one in both}, {one.partition: ends[one] for one in both}, led)


def at_time(client: AdminClient, name: str, places: Span, time_ms: int) -> dict[int, int]:
    """The first record of each partition from that time on. Raises Trouble and KafkaError."""
    led = places.led or leaders_and_id(client, name)
    wanted = _places(name, led.leaders, list(places.ends))
    found = offsets_of(client, wanted, time_ms)
    return {one: at if (at := found.get(Place(name, one), -1)) >= 0 else end for one, end in places.ends.items()}


def _places(name: str, known: Mapping[int, int], partitions: Sequence[int] | None) -> dict[Place, int]:
    wanted = set(known if partitions is None else partitions)
    if absent := wanted - set(known):
        raise Trouble(f"{name} has no partition {min(absent)}")
    return {Place(name, one): leader for one, leader in known.items() if one in wanted}


class Scan:
    """A step from `positions` to `ends`: until there are `most` rows, the time is over, or all is read. `led`: what the
    topic's leaders were a moment ago, if that is known."""

    def __init__(
        self,
        topic: str,
        positions: Positions,
        ends: Positions,
        matches: Filter,
        most: int,
        *,
        led: Led | None = None,
        shows_markers: bool = False,
        step_s: float = STEP_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._at = dict(positions)
        self._ends = dict(ends)
        self._matches = matches
        self._most = most
        self._led = led
        self._shows_markers = shows_markers
        self._step_s = step_s
        self._now = now
        self._rows: list[Found] = []
        self._bytes = 0
        self._looked_at = 0
        self._trouble: dict[int, str] = {}
        self._stable: dict[int, int] = {}
        self._has_full_answers = False

    def __call__(self, client: AdminClient) -> Step:
        """Raises Trouble and KafkaError if the topic cannot be found; a leader that fails is in `trouble`."""
        deadline = self._now() + self._step_s
        known, topic_id = self._led or leaders_and_id(client, self._topic)
        while open_ := [one for one in self._at if self._at[one] < self._ends[one] and one not in self._trouble]:
            for asked in portions(self._questions(known, open_), FETCHES_AT_ONCE):
                requests = [
                    (fetch(self._topic, topic_id, {one: self._at[one] for one in of}, isolation), leader)
                    for leader, of, isolation in asked
                ]
                for (_, of, isolation), answer in zip(asked, client.send_all(requests), strict=True):
                    self._answered(of, answer, isolation)
                if self._is_full or self._now() >= deadline:
                    return self._step()
        return self._step()

    def _questions(self, known: Mapping[int, int], partitions: Sequence[int]) -> Iterator[tuple[int, list[int], int]]:
        """Each a leader, partitions, and an isolation level."""
        for leader, of in self._portions(known, partitions):
            levels = [(one, self._isolation(one)) for one in of]
            for isolation in (UNCOMMITTED, COMMITTED):
                if some := [one for one, level in levels if level == isolation]:
                    yield leader, some, isolation

    def _portions(self, known: Mapping[int, int], partitions: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """The leaders take turns."""
        waiting = {leader: deque(of) for leader, of in sorted(_by_leader(known, partitions, self._trouble).items())}
        while waiting:
            for leader, of in list(waiting.items()):
                yield leader, self._taken(of)
                if not of:
                    del waiting[leader]

    def _taken(self, waiting: deque[int]) -> list[int]:
        """The first of them, for one request. What is behind a full answer would be asked for in vain, so there are
        only some in each request once one was full."""
        taken, offsets = list[int](), 0
        most = PARTITIONS_AT_ONCE if self._has_full_answers else PARTITIONS_MAX
        while waiting and len(taken) < most:
            offsets += self._ends[waiting[0]] - self._at[waiting[0]]
            if offsets > OFFSETS_AT_ONCE and len(taken) >= PARTITIONS_AT_ONCE:
                break
            taken.append(waiting.popleft())
        return taken

    def _isolation(self, partition: int) -> int:
        """What is behind the last stable offset is read without waiting for the ends of its transactions."""
        return UNCOMMITTED if self._at[partition] >= self._stable.get(partition, self._ends[partition]) else COMMITTED

    @property
    def _is_full(self) -> bool:
        return len(self._rows) >= self._most or self._bytes >= ROWS_BYTES_MAX

    def _step(self) -> Step:
        done = all(self._at[one] >= self._ends[one] or one in self._trouble for one in self._at)
        words = [f"partition {one}: {text}" for one, text in sorted(self._trouble.items())]
        return Step(self._rows, self._at, self._ends, self._looked_at, done, words)

    def _answered(self, partitions: Sequence[int], answer: FetchResponse | KafkaError, isolation: int) -> None:
        if isinstance(answer, KafkaError):
            self._trouble |= dict.fromkeys(partitions, str(trouble_of(answer)))
            return
        if answer.error_code:
            self._trouble |= dict.fromkeys(partitions, error_text({"error_code": answer.error_code}) or "")
        for topic in answer.responses:
            size = sum(len(row.records or b"") for row in topic.partitions)
            self._has_full_answers = self._has_full_answers or size >= BYTES_AT_ONCE
            for row in topic.partitions:
                if self._is_full:
                    return
                if row.error_code:
                    self._failed(row)
                else:
                    self._take(row, isolation)

    def _failed(self, row: _Partition) -> None:
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset > self._at[row.partition_index]:
            self._at[row.partition_index] = row.log_start_offset  # retention has been faster
            return
        self._trouble[row.partition_index] = error_text({"error_code": row.error_code}) or ""

    def _take(self, row: _Partition, isolation: int) -> None:
        partition, data = row.partition_index, memoryview(row.records or b"")
        self._stable[partition] = row.last_stable_offset
        aborted = _Aborted((one.first_offset, one.producer_id) for one in row.aborted_transactions or ())
        try:
            for at, header in iterate_batches(data, 0, len(data)):
                if isolation == UNCOMMITTED and self._is_decided(partition, header):
                    return
                states = _state(header, aborted, row.last_stable_offset)
                if header.is_control:
                    if not self._marker(partition, data, at, header, aborted):
                        return
                elif not self._matches.is_open and self._is_within(partition, header):
                    if not self._sift(partition, data, at, header, states):
                        return
                else:
                    for record in decode_records(data, at, header.size, inflated_bytes_max=INFLATED_BYTES_MAX):
                        if not self._add(partition, record, states, header.producer_id):
                            return
                self._at[partition] = max(self._at[partition], header.next_offset)
        except EXPECTED as error:
            self._trouble[partition] = f"a batch at offset {self._at[partition]} cannot be read: {error}"

    def _is_decided(self, partition: int, header: BatchHeader) -> bool:
        """Whether a transaction has ended since its partition was last asked. Only an answer to a reader of committed
        records lists those that were aborted, so such a batch is read again as one."""
        first = max(header.base_offset, self._at[partition])
        return header.is_transactional and not header.is_control and first < self._stable[partition]

    def _is_within(self, partition: int, header: BatchHeader) -> bool:
        """Whether all records of a batch are to be looked at."""
        return header.base_offset >= self._at[partition] and header.last_offset < self._ends[partition]

    def _sift(self, partition: int, data: memoryview, at: int, header: BatchHeader, state: State) -> bool:
        """Takes what is wanted of a batch. False when the step has enough; what follows begins at the next record."""
        header, inflated = inflate_records(data, at, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
        seen = 0
        for number, record in self._matches.wanted_of(header, inflated):
            if self._is_full:
                self._looked_at += seen
                return False
            seen = number + 1
            self._at[partition] = record.offset + 1
            self._take_row(Found(partition, record, state, header.producer_id))
        self._looked_at += header.count
        return True

    def _take_row(self, found: Found) -> None:
        self._rows.append(found)
        self._bytes += found.size

    def _add(self, partition: int, record: Record, state: State, producer_id: int) -> bool:
        """False when the step has enough; the record is then the next one."""
        if record.offset < self._at[partition]:
            return True  # a batch begins before the offset that was asked for
        if record.offset >= self._ends[partition]:
            self._at[partition] = self._ends[partition]
            return False
        if self._is_full:
            return False
        self._looked_at += 1
        self._at[partition] = record.offset + 1
        if self._matches(record):
            self._take_row(Found(partition, record, state, producer_id))
        return True

    def _marker(self, partition: int, data: memoryview, at: int, header: BatchHeader, aborted: _Aborted) -> bool:
        """False when the step has enough; the marker is then what comes next."""
        marker = read_marker(data, at, header.size)
        if marker is None or header.base_offset < self._at[partition]:
            return True
        if marker.kind is MarkerKind.ABORT:
            aborted.ends(header.producer_id)
        if self._shows_markers and header.base_offset < self._ends[partition]:
            if self._is_full:
                return False
            state = State.MARKER_ABORT if marker.kind is MarkerKind.ABORT else State.MARKER_COMMIT
            record = Record(header.base_offset, marker.timestamp, None, None)
            self._rows.append(Found(partition, record, state, header.producer_id))
        return True


class _Aborted:
    """Which producers' transactions are being read that were aborted, as offsets go on."""

    def __init__(self, listed: Iterator[tuple[int, int]]) -> None:
        self._waiting = sorted(listed, reverse=True)
        self._running: set[int] = set()

    def has(self, header: BatchHeader) -> bool:
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._running.add(self._waiting.pop()[1])
        return header.producer_id in self._running

    def ends(self, producer_id: int) -> None:
        self._running.discard(producer_id)


def _state(header: BatchHeader, aborted: _Aborted, stable: int) -> State:
    if not header.is_transactional:
        return State.PLAIN
    if aborted.has(header):
        return State.ABORTED
    return State.OPEN if 0 <= stable <= header.base_offset else State.COMMITTED


def _by_leader(known: Mapping[int, int], partitions: Sequence[int], trouble: dict[int, str]) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = {}
    for one in partitions:
        leader = known.get(one, -1)
        if leader < 0:
            trouble[one] = "it has no leader"
        else:
            grouped.setdefault(leader, []).append(one)
    return grouped


def fetch(
    name: str, topic_id: UUID | None, positions: Positions, isolation: int, *, bytes_max: int = BYTES_AT_ONCE
) -> FetchRequest:
    """Of one topic, outside of any fetch session."""
    row = FetchRequest.FetchTopic
    partitions = [
        row.FetchPartition(
            partition=one,
            current_leader_epoch=-1,
            fetch_offset=at,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=bytes_max,
            replica_directory_id=None,  # these two are of replicas; what is set is encoded in half of the time
            high_watermark=LONG_MAX,
        )
        for one, at in positions.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=2 * BYTES_AT_ONCE,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=[row(topic=name, topic_id=topic_id, partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
    )
