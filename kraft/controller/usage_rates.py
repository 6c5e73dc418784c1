"""Rates from a broker's reports of what its clients use. Pure: a report and what was known before make what is known.

A broker is believed only within bounds. A row with a counter that is negative or huge is left out. A counter that has
fallen begins again, and a rate is never more than what any broker could do. A round that was taken before changes
nothing. Of a lost one nothing is missed, because counters only grow and pieces without an answer are reported again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from common.loop_load import LoadMeans, LoopCounters, sample
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from wire.messages import ReportUsageRequest, raw_uuid

COUNTER_MAX = 1 << 60
UPTIME_MS_MAX = 1 << 50
BYTES_PER_SECOND_MAX = 1e12
REQUESTS_PER_SECOND_MAX = 1e8
SHARE_MAX = 1_000.0
PARTITIONS_MAX, TOPICS_MAX = 256, 1_001  # of one round
SIZES_MAX = 1_000  # likewise
THROTTLES_MAX = 20
PIECE_ROWS_MAX = 1_000  # of each list of one request, which is taken in at once; a broker sends some hundred
INTERVAL_MS_MAX = 24 * 3_600_000
OPERATORS = ""


class Verdict(StrEnum):
    """What became of one request of a report."""

    TAKEN = "taken"
    REPEATED = "repeated"  # it was taken before, or a later round was
    OUT_OF_ORDER = "out_of_order"  # pieces before it are missing
    ABSURD = "absurd"


class Counters(NamedTuple):
    """What was used since a broker's start."""

    bytes_in: int = 0
    bytes_out: int = 0
    requests: int = 0
    busy_ns: int = 0

    @property
    def are_sane(self) -> bool:
        return min(self) >= 0 and max(self) <= COUNTER_MAX


ZERO = Counters()


class Rates(NamedTuple):
    """What is used in a second; `busy` is a share of one event loop."""

    bytes_in: float
    bytes_out: float
    requests: float
    busy: float


NO_USE = Rates(0.0, 0.0, 0.0, 0.0)


def rates(before: Counters, now: Counters, passed_s: float) -> Rates | None:
    """None when they are unknown: no time has passed, or a counter has fallen."""
    if not passed_s > 0 or any(later < earlier for earlier, later in zip(before, now, strict=True)):
        return None
    return Rates(
        min((now.bytes_in - before.bytes_in) / passed_s, BYTES_PER_SECOND_MAX),
        min((now.bytes_out - before.bytes_out) / passed_s, BYTES_PER_SECOND_MAX),
        min((now.requests - before.requests) / passed_s, REQUESTS_PER_SECOND_MAX),
        min((now.busy_ns - before.busy_ns) / 1e9 / passed_s, SHARE_MAX),
    )


class TenantUse(NamedTuple):
    """One tenant on one broker. `at_ms` is the uptime at which the counters were reported, in `round`.

    `throttled`: milliseconds that clients had to wait, by reason; `waited`: those since the report before.
    """

    counters: Counters
    attempts: int
    connections: int
    throttled: tuple[tuple[str, int], ...]
    at_ms: int
    round: int
    rates: Rates | None
    waited: tuple[tuple[str, int], ...] = ()


class PartitionUse(NamedTuple):
    """Bytes a second of a partition; `partition` is -1 for the others of a topic, whose zero id stands for all."""

    topic_id: bytes
    partition: int
    rate_in: float
    rate_out: float


class Head(NamedTuple):
    """A broker as a whole. Rates are None while they are unknown. `means` are those of its event loop."""

    counters: Counters
    connections: int
    cpu_ms: int
    moved_bytes: int
    disk_used_bytes: int
    disk_size_bytes: int
    rates: Rates | None
    cpu_share: float | None
    moved_rate: float | None
    loop: LoopCounters
    means: LoadMeans


class BrokerUse(Struct):
    """What one life of a broker has reported. Times are seconds of the controller's monotonic clock.

    `round` is the last whole one, which came at `heard_s`; 0 before there is one. What a round does not name has
    not moved since it was named.
    """

    broker_epoch: int
    heard_s: float
    round: int = 0
    uptime_ms: int = 0
    head: Head | None = None
    tenants: dict[str, TenantUse] = {}
    partitions: list[PartitionUse] = []
    topics: list[PartitionUse] = []
    is_whole: bool = False  # from the broker's start: a tenant that is not known had used nothing before
    open_round: int = 0
    open_uptime_ms: int = 0
    pieces: int = 0  # of the open round
    open_partitions: list[PartitionUse] = []
    open_topics: list[PartitionUse] = []
    sizes: dict[PartitionKey, float] = {}
    """Local bytes of its largest replicas, as last reported."""
    others_bytes: float | None = None
    """Of all its other replicas; None until it has reported them."""
    open_sizes: dict[PartitionKey, float] = {}

    def rates_of(self, use: TenantUse) -> Rates | None:
        """Nothing is used by a tenant that the last whole round does not name."""
        return use.rates if use.round >= self.round else NO_USE

    def take(self, image: MetadataImage, request: ReportUsageRequest, now: float) -> Verdict:
        """Take in one request; anything but TAKEN leaves all as it was."""
        verdict = self._placed(request)
        if verdict is not Verdict.TAKEN:
            return verdict
        lists = (request.tenants, request.partitions, request.topics, request.ack_delays, request.sizes)
        if any(len(rows) > PIECE_ROWS_MAX for rows in lists):
            return Verdict.ABSURD
        totals = Counters(request.bytes_in, request.bytes_out, request.requests, request.busy_ns)
        if not totals.are_sane or not 0 <= request.moved_bytes <= COUNTER_MAX or request.cpu_ms < 0:
            return Verdict.ABSURD
        if request.round != self.open_round:
            self._open(request)
        self.pieces += 1
        for row in request.tenants:
            if row.tenant == OPERATORS or row.tenant in image.tenants:
                self._take_tenant(row)
        self._take_partitions(image, request)
        self._take_sizes(image, request)
        if request.is_last:
            self._close(request, totals, now)
        return Verdict.TAKEN

    def _placed(self, request: ReportUsageRequest) -> Verdict:
        """Whether it is this request's turn."""
        newest = max(self.round, self.open_round)
        if request.round < newest or request.round == self.round:
            return Verdict.REPEATED
        if request.round == self.open_round:
            if request.uptime_ms != self.open_uptime_ms:
                return Verdict.ABSURD
            if request.piece < self.pieces:
                return Verdict.REPEATED
            return Verdict.TAKEN if request.piece == self.pieces else Verdict.OUT_OF_ORDER
        if not self.uptime_ms < request.uptime_ms <= UPTIME_MS_MAX or request.round > COUNTER_MAX:
            return Verdict.ABSURD
        return Verdict.TAKEN if request.piece == 0 else Verdict.OUT_OF_ORDER

    def _open(self, request: ReportUsageRequest) -> None:
        if not self.round:
            self.is_whole = request.round == 1
        self.open_round = request.round
        self.open_uptime_ms = request.uptime_ms
        self.pieces = 0
        self.open_partitions, self.open_topics, self.open_sizes = [], [], {}

    def _take_sizes(self, image: MetadataImage, request: ReportUsageRequest) -> None:
        for row in request.sizes[: SIZES_MAX - len(self.open_sizes)]:
            topic_id = raw_uuid(row.topic_id)
            if image.partition(topic_id, row.partition_index) is not None and _are_bytes(row.bytes):
                self.open_sizes[topic_id, row.partition_index] = float(row.bytes)

    def _take_tenant(self, row: ReportUsageRequest.TenantUsageReport) -> None:
        counters = Counters(row.bytes_in, row.bytes_out, row.requests, row.busy_ns)
        throttled = tuple((one.reason, one.ms) for one in row.throttled[:THROTTLES_MAX])
        if not counters.are_sane or row.attempts < 0 or row.connections < 0 or any(ms < 0 for _, ms in throttled):
            return
        known = self.tenants.get(row.tenant)
        if known is not None and known.round == self.open_round:
            return
        found: Rates | None = None
        if known is not None:
            since_ms = max(known.at_ms, self.uptime_ms)
            found = rates(known.counters, counters, (self.open_uptime_ms - since_ms) / 1000)
        elif self.is_whole:
            found = rates(ZERO, counters, (self.open_uptime_ms - self.uptime_ms) / 1000)
        waited = _since(() if known is None else known.throttled, throttled) if known or self.is_whole else ()
        self.tenants[row.tenant] = TenantUse(
            counters, row.attempts, row.connections, throttled, self.open_uptime_ms, self.open_round, found, waited
        )

    def _take_partitions(self, image: MetadataImage, request: ReportUsageRequest) -> None:
        if not 0 < request.interval_ms <= INTERVAL_MS_MAX:
            return
        seconds = request.interval_ms / 1000
        for row in request.partitions[: PARTITIONS_MAX - len(self.open_partitions)]:
            topic_id = raw_uuid(row.topic_id)
            if image.partition(topic_id, row.partition_index) is not None and _are_bytes(row.bytes_in, row.bytes_out):
                self.open_partitions.append(
                    PartitionUse(
                        topic_id, row.partition_index, _rate(row.bytes_in, seconds), _rate(row.bytes_out, seconds)
                    )
                )
        for of_topic in request.topics[: TOPICS_MAX - len(self.open_topics)]:
            if _are_bytes(of_topic.bytes_in, of_topic.bytes_out):
                self.open_topics.append(
                    PartitionUse(
                        raw_uuid(of_topic.topic_id),
                        -1,
                        _rate(of_topic.bytes_in, seconds),
                        _rate(of_topic.bytes_out, seconds),
                    )
                )

    def _close(self, request: ReportUsageRequest, totals: Counters, now: float) -> None:
        before = self.head
        if before is None and self.is_whole:
            before = Head(ZERO, 0, 0, 0, -1, -1, None, None, None, LoopCounters(), LoadMeans())
        passed_s = (self.open_uptime_ms - self.uptime_ms) / 1000
        found: Rates | None = None
        cpu_share: float | None = None
        moved_rate: float | None = None
        if before is not None:
            found = rates(before.counters, totals, passed_s)
            cpu_share = min(max(request.cpu_ms - before.cpu_ms, 0) / 1000 / passed_s, SHARE_MAX)
            moved_rate = _rate(max(request.moved_bytes - before.moved_bytes, 0), passed_s)
        disk_size = request.disk_size_bytes
        disk_used = request.disk_used_bytes if 0 <= request.disk_used_bytes <= disk_size else -1
        self.head = Head(
            totals,
            max(request.connections, 0),
            request.cpu_ms,
            request.moved_bytes,
            disk_used,
            disk_size if disk_used >= 0 else -1,
            found,
            cpu_share,
            moved_rate,
            loop := _loop(request),
            LoadMeans() if before is None else _means(before, loop, passed_s),
        )
        self.round, self.uptime_ms, self.heard_s = self.open_round, self.open_uptime_ms, now
        self.partitions, self.open_partitions = self.open_partitions, []
        self.topics, self.open_topics = self.open_topics, []
        if _are_bytes(request.others_bytes):
            self.sizes, self.open_sizes = self.open_sizes, {}
            self.others_bytes = float(request.others_bytes)


def _loop(request: ReportUsageRequest) -> LoopCounters:
    """The counters of the broker's event loop; none if they make no sense."""
    found = LoopCounters(
        request.loop_jobs,
        request.loop_wait_ns / 1e9,
        request.loop_service_ns / 1e9,
        request.loop_service_squares,
        request.loop_busy_ns / 1e9,
    )
    return found if found.are_sane else LoopCounters()


def _means(before: Head, loop: LoopCounters, passed_s: float) -> LoadMeans:
    """The means after a round; as before it where a counter has fallen."""
    added = loop.since(before.loop)
    one = None if added is None else sample(added, passed_s)
    return before.means if one is None else before.means.with_sample(one, passed_s)


def _since(before: tuple[tuple[str, int], ...], now: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    if before == now:
        return ()
    known = dict(before)
    return tuple((reason, ms - known.get(reason, 0)) for reason, ms in now if ms > known.get(reason, 0))


def _are_bytes(*counts: int) -> bool:
    return min(counts) >= 0 and max(counts) <= COUNTER_MAX


def _rate(count: int, seconds: float) -> float:
    return min(count / seconds, BYTES_PER_SECOND_MAX)
