"""Reports to the active controller what clients use of this broker, at a fixed interval.

A round is gathered in slices and sent in pieces, because a broker may have very many tenants and partitions. Of the
tenants it names those alone whose counters have moved since a controller last took them. A controller that loses a
piece learns the same from a later round: counters only grow, and a piece without an answer is reported again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappush, heappushpop
from typing import Generic, NamedTuple, TypeVar

from broker.partitions.ack_delays import FollowerDelay
from broker.partitions.hosted import HostedPartitions
from broker.quotas.tenant_shares import Share, TenantShares
from broker.security.usage import Usage, UsageBook
from common.errors import OutcomeUnknown
from common.identifiers import ZERO_UUID
from common.lifecycle import duty, end_task
from common.loop_load import LoopCounters
from common.metrics import Metrics
from common.pacing import Pacer, Work
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from wire.messages import ReportUsageRequest, ReportUsageResponse, schema_uuid

PARTITIONS_MAX = 256  # in one round; the bytes of others count for their topics
TOPICS_MAX = 1_000  # likewise; those of other topics are added up
ROWS_PER_PIECE = 300  # some milliseconds for either side
LOOKED_AT_ONCE, LOOK_COST = 50, 2  # tenants, partitions or topics, and units of `common.pacing` of each
SIZES_EVERY, SIZES_MAX = 12, 1_000
"""Every so many rounds, the sizes of the largest replicas are reported; those of others are added up."""
SIZED_AT_ONCE, SIZE_COST = 20, 4  # replicas; the cost is that of a log with few segments
THROTTLED_MAX = 1_000  # tenants that a metric names
OTHERS = "others"
OPERATORS = ""
"""Stands for the clients of operators' listeners, who belong to no tenant."""

T = TypeVar("T")


class Largest(Generic[T]):
    """The items of the greatest weights among all that were put in."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[int, int, T]] = []
        self._count = 0  # tells items of one weight apart

    def put(self, weight: int, item: T) -> T | None:
        """The item that falls out for it, perhaps itself; None while there is room."""
        self._count += 1
        if len(self._heap) < self._most:
            heappush(self._heap, (weight, self._count, item))
            return None
        return heappushpop(self._heap, (weight, self._count, item))[2]

    def found(self) -> list[T]:
        """The greatest first."""
        return [item for _, _, item in sorted(self._heap, reverse=True, key=lambda entry: entry[:2])]


class PartitionBytes(NamedTuple):
    """Bytes since the round before. `partition` is -1 for several of a topic."""

    topic_id: bytes
    partition: int
    bytes_in: int
    bytes_out: int

    @property
    def weight(self) -> int:
        return self.bytes_in + self.bytes_out


class Sizes(NamedTuple):
    """Local bytes of replicas, the largest first, with topic id and partition; `others`: of all others."""

    largest: Sequence[tuple[bytes, int, int]]
    others: int


class Machine(NamedTuple):
    """What the node tells of its machine and sockets. `disk` returns free bytes and size of the device, `loop` the
    counters of the event loop."""

    now: Callable[[], float]
    cpu_s: Callable[[], float]
    moved: Callable[[], int]
    disk: Callable[[], tuple[int, int]]
    loop: Callable[[], LoopCounters]


class Gathered(NamedTuple):
    """One round. `tenants` are those to report, by id."""

    at_s: float
    interval_s: float
    loop: LoopCounters
    total: Usage
    tenants: list[tuple[str, Usage]]
    partitions: list[PartitionBytes]
    topics: list[PartitionBytes]
    sizes: Sizes | None


class Piece(NamedTuple):
    """The rows of one request of a round. `others_bytes`: -1 in a round without sizes."""

    tenants: Sequence[tuple[str, Usage]] = ()
    partitions: Sequence[PartitionBytes] = ()
    topics: Sequence[PartitionBytes] = ()
    delays: Sequence[FollowerDelay] = ()
    sizes: Sequence[tuple[bytes, int, int]] = ()
    others_bytes: int = -1


class UsageReporter:
    """Owns one task."""

    def __init__(
        self,
        book: UsageBook,
        hosted: HostedPartitions,
        channel: ControllerCalls,
        machine: Machine,
        pacer: Pacer,
        broker_epoch: Callable[[], int],
        interval_s: float,
        shares: TenantShares,
    ) -> None:
        self._book = book
        self._shares = shares
        self._hosted = hosted
        self._channel = channel
        self._machine = machine
        self._pacer = pacer
        self._broker_epoch = broker_epoch
        self._interval_s = interval_s
        self._began_s = self._gathered_s = machine.now()
        self._round = self._sizes_due = 0
        self._task: asyncio.Task[None] | None = None
        self.total = Usage()
        """Of all clients, as of the last round."""
        self._throttled: dict[str, Usage] = {}  # the tenants that were throttled first
        self.outcomes = {"answered": 0, "unanswered": 0}

    def start(self) -> None:
        self._task = asyncio.create_task(self._report_for_ever(), name=duty("usage-reports"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def _report_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.report()

    async def report(self) -> bool:
        """One round; whether a controller has taken all of it."""
        gathered = await self._pacer.run(self._gathering(), "usage", own=True)
        self.total = gathered.total
        self._round += 1
        sent_s = self._machine.now()
        taken = await self._sent(gathered)
        if taken and gathered.sizes is not None:
            self._sizes_due = self._round + SIZES_EVERY - 1
        unanswered = [] if taken else [tenant for tenant, _ in gathered.tenants]
        await self._pacer.run(self._shares.answered(sent_s if taken else -1.0, unanswered), "usage", own=True)
        self.outcomes["answered" if taken else "unanswered"] += 1
        return taken

    # gathering ---------------------------------------------------------------------------------------------

    def _gathering(self) -> Work[Gathered]:
        now = self._machine.now()
        interval_s, self._gathered_s = now - self._gathered_s, now
        loop = self._machine.loop()
        total, tenants, named = Usage(), list[tuple[str, Usage]](), set[str]()
        total.add(self._book.forgotten)
        for number, tenant in enumerate([OPERATORS, *self._book.tenants()], 1):
            usage = self._book.operators if tenant == OPERATORS else self._book.get(tenant)
            if usage is not None:
                total.add(usage)
                if usage.throttled_ms and tenant and len(self._throttled) < THROTTLED_MAX:
                    self._throttled[tenant] = usage
                if not usage.is_reported:
                    tenants.append((tenant, usage))
                    named.add(tenant)
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        for number, tenant in enumerate(list(self._shares.held()), 1):
            if tenant not in named:
                tenants.append((tenant, self._book.of(tenant)))
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        largest, others = yield from self._busiest()
        topics = yield from _largest_topics(others)
        sizes = (yield from self._sizes()) if self._round >= self._sizes_due else None
        return Gathered(now - self._began_s, interval_s, loop, total, tenants, largest, topics, sizes)

    def _sizes(self) -> Work[Sizes]:
        """Of all replicas, also of followers and of idle ones."""
        largest, others = Largest[tuple[bytes, int, int]](SIZES_MAX), 0
        for number, partition in enumerate(list(self._hosted), 1):
            size = partition.log.size_bytes
            out = largest.put(size, (partition.topic_id, partition.index, size))
            others += out[2] if out is not None else 0
            if number % SIZED_AT_ONCE == 0:
                yield SIZED_AT_ONCE * SIZE_COST
        return Sizes(largest.found(), others)

    def _busiest(self) -> Work[tuple[list[PartitionBytes], dict[bytes, PartitionBytes]]]:
        """The partitions with the most bytes, and those of all others by topic."""
        largest, others = Largest[PartitionBytes](PARTITIONS_MAX), dict[bytes, PartitionBytes]()
        for number, (partition, before) in enumerate(self._hosted.take_busy().items(), 1):
            bytes_in, bytes_out = partition.look_at_bytes()
            row = PartitionBytes(partition.topic_id, partition.index, bytes_in - before[0], bytes_out - before[1])
            out = largest.put(row.weight, row)
            if out is not None:
                others[out.topic_id] = _sum(others.get(out.topic_id), out, out.topic_id)
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        return largest.found(), others

    # sending -----------------------------------------------------------------------------------------------

    async def _sent(self, gathered: Gathered) -> bool:
        pieces = [Piece(tenants=portion) for portion in _portions(gathered.tenants)]
        pieces += [Piece(topics=portion) for portion in _portions(gathered.topics)]
        sizes = gathered.sizes
        pieces += [Piece(sizes=portion) for portion in _portions(() if sizes is None else sizes.largest)]
        # also when there are none: each round has a piece
        pieces.append(
            Piece(
                partitions=gathered.partitions,
                delays=self._hosted.ack_delays.take(),
                others_bytes=-1 if sizes is None else sizes.others,
            )
        )
        for number, piece in enumerate(pieces, 1):
            markers = [(usage, usage.marker) for _, usage in piece.tenants]
            answer = await self._answer(self._request(gathered, piece, number - 1, number == len(pieces)))
            if answer is None:
                return False
            self._shares.take([tenant for tenant, _ in piece.tenants], answer)
            for usage, marker in markers:
                usage.reported(marker)
        return True

    async def _answer(self, request: ReportUsageRequest) -> ReportUsageResponse | None:
        """None unless the controller has taken the request."""
        try:
            answer: ReportUsageResponse = await self._channel.call(request, 0, timeout_s=self._interval_s)
        except (ControllerUnavailable, OutcomeUnknown):  # heartbeats complain
            return None
        return answer if answer.error_code == 0 else None

    def _request(self, gathered: Gathered, piece: Piece, number: int, is_last: bool) -> ReportUsageRequest:
        total, loop, machine = gathered.total, gathered.loop, self._machine
        free, size = machine.disk()
        return ReportUsageRequest(
            broker_id=self._hosted.node_id,
            broker_epoch=self._broker_epoch(),
            round=self._round,
            piece=number,
            is_last=is_last,
            uptime_ms=int(gathered.at_s * 1000),
            cpu_ms=int(machine.cpu_s() * 1000),
            moved_bytes=machine.moved(),
            disk_used_bytes=size - free if size >= 0 else -1,
            disk_size_bytes=size,
            bytes_in=total.received,
            bytes_out=total.sent,
            requests=total.requests,
            busy_ns=int(total.busy_s * 1e9),
            connections=total.connections,
            loop_jobs=loop.jobs,
            loop_wait_ns=int(loop.wait_s * 1e9),
            loop_service_ns=int(loop.service_s * 1e9),
            loop_service_squares=loop.service_squares,
            loop_busy_ns=int(loop.busy_s * 1e9),
            tenants=[_tenant_row(tenant, usage, self._shares.of(tenant)) for tenant, usage in piece.tenants],
            interval_ms=int(gathered.interval_s * 1000),
            partitions=[_partition_row(row) for row in piece.partitions],
            topics=[_topic_row(row) for row in piece.topics],
            ack_delays=[_delay_row(row) for row in piece.delays],
            sizes=[_size_row(row) for row in piece.sizes],
            others_bytes=piece.others_bytes,
        )

    # metrics -----------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        """What is counted in the tenants' counters is shown as of the last report."""
        metrics.family(
            "tidelog_client_bytes_total",
            lambda: [({"direction": "in"}, self.total.received), ({"direction": "out"}, self.total.sent)],
        )
        metrics.counter("tidelog_client_busy_seconds_total", lambda: self.total.busy_s)
        metrics.family(
            "tidelog_client_throttled_seconds_total",
            lambda: [({"reason": reason}, ms / 1000) for reason, ms in self.total.throttled_ms.items()],
        )
        metrics.family("tidelog_tenant_throttle_seconds_total", self._throttled_seconds)
        metrics.gauge("tidelog_disk_free_bytes", lambda: self._machine.disk()[0])
        metrics.gauge("tidelog_disk_size_bytes", lambda: self._machine.disk()[1])
        metrics.family(
            "tidelog_usage_reports_total",
            lambda: [({"outcome": outcome}, float(count)) for outcome, count in self.outcomes.items()],
        )

    def _throttled_seconds(self) -> list[tuple[dict[str, str], float]]:
        """A scrape names at most `THROTTLED_MAX` tenants, and `OTHERS` for the rest."""
        found, left = list[tuple[dict[str, str], float]](), dict(self.total.throttled_ms)
        for reason, ms in self._book.operators.throttled_ms.items():
            left[reason] = left.get(reason, 0) - ms
        for tenant, usage in self._throttled.items():
            for reason, ms in usage.throttled_ms.items():
                left[reason] = left.get(reason, 0) - ms
                found.append(({"tenant": tenant, "reason": reason}, ms / 1000))
        if len(self._throttled) >= THROTTLED_MAX:
            found += [({"tenant": OTHERS, "reason": reason}, max(ms, 0) / 1000) for reason, ms in left.items()]
        return found


def _portions(rows: Sequence[T]) -> list[Sequence[T]]:
    return [rows[begin : begin + ROWS_PER_PIECE] for begin in range(0, len(rows), ROWS_PER_PIECE)]


def _largest_topics(others: dict[bytes, PartitionBytes]) -> Work[list[PartitionBytes]]:
    """The topics with the most bytes, and what is left under the zero id."""
    largest, left = Largest[PartitionBytes](TOPICS_MAX), None
    for number, row in enumerate(others.values(), 1):
        out = largest.put(row.weight, row)
        if out is not None:
            left = _sum(left, out, ZERO_UUID)
        if number % LOOKED_AT_ONCE == 0:
            yield LOOKED_AT_ONCE * LOOK_COST
    return [*largest.found(), *([left] if left is not None else [])]


def _sum(before: PartitionBytes | None, more: PartitionBytes, topic_id: bytes) -> PartitionBytes:
    bytes_in, bytes_out = (0, 0) if before is None else (before.bytes_in, before.bytes_out)
    return PartitionBytes(topic_id, -1, bytes_in + more.bytes_in, bytes_out + more.bytes_out)


def _tenant_row(tenant: str, usage: Usage, share: Share) -> ReportUsageRequest.TenantUsageReport:
    row = ReportUsageRequest.TenantUsageReport
    return row(
        tenant=tenant,
        bytes_in=usage.received,
        bytes_out=usage.sent,
        requests=usage.requests,
        busy_ns=int(usage.busy_s * 1e9),
        attempts=usage.attempts,
        connections=usage.connections,
        ingress_share=share.ingress,
        egress_share=share.egress,
        busy_share=share.busy,
        throttled=[row.ThrottledTime(reason=reason, ms=ms) for reason, ms in usage.throttled_ms.items()],
    )


def _partition_row(row: PartitionBytes) -> ReportUsageRequest.PartitionUsageReport:
    return ReportUsageRequest.PartitionUsageReport(
        topic_id=schema_uuid(row.topic_id),
        partition_index=row.partition,
        bytes_in=row.bytes_in,
        bytes_out=row.bytes_out,
    )


def _delay_row(row: FollowerDelay) -> ReportUsageRequest.AckDelayReport:
    return ReportUsageRequest.AckDelayReport(
        follower_id=row.broker_id, samples=row.samples, p99_us=int(row.p99_s * 1e6)
    )


def _size_row(row: tuple[bytes, int, int]) -> ReportUsageRequest.ReplicaSizeReport:
    topic_id, index, size = row
    return ReportUsageRequest.ReplicaSizeReport(topic_id=schema_uuid(topic_id), partition_index=index, bytes=size)


def _topic_row(row: PartitionBytes) -> ReportUsageRequest.TopicUsageReport:
    return ReportUsageRequest.TopicUsageReport(
        topic_id=schema_uuid(row.topic_id), bytes_in=row.bytes_in, bytes_out=row.bytes_out
    )
