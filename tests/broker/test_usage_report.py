"""What a broker reports of its clients' use: the tenants that used something, the busiest partitions, in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.partitions.ack_delays import AckDelays
from broker.quotas.tenant_bounds import TenantBound
from broker.quotas.tenant_shares import TenantShares
from broker.security.usage import NODES, ThrottleReason, Usage, UsageBook
from broker.usage_report import (
    PARTITIONS_MAX,
    ROWS_PER_PIECE,
    SIZES_EVERY,
    SIZES_MAX,
    THROTTLED_MAX,
    TOPICS_MAX,
    Largest,
    Machine,
    UsageReporter,
)
from common.errors import ErrorCode
from common.loop_load import LoopCounters
from common.metrics import Metrics
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.pacing import SLICE_COST, Pacer
from kraft.image.metadata import EMPTY_IMAGE
from kraft.observers.controller_channel import ControllerUnavailable
from storage.audit.audit_trail import NoTrail
from tests.common.call_count import counted_calls
from wire.messages import ReportUsageResponse

pytestmark = pytest.mark.virtual_time

MANY = 20_000


class Counted:
    """A partition of which only the counters count."""

    index = 0

    def __init__(self, number: int, bytes_in: int) -> None:
        self.topic_id = number.to_bytes(16, "big")
        self.bytes_in = bytes_in

    def look_at_bytes(self) -> tuple[int, int]:
        return self.bytes_in, 0


class Sized:
    """A replica of which only the size counts; it is its own log."""

    index = 7

    def __init__(self, number: int) -> None:
        self.topic_id = number.to_bytes(16, "big")
        self.size_bytes = number
        self.log = self


LOOP = LoopCounters(jobs=4, wait_s=2.0, service_s=0.5, service_squares=0.0625, busy_s=1.0)


class World:
    """Hosted partitions, a controller, and a machine."""

    node_id = 3

    def __init__(self) -> None:
        self.book = UsageBook()
        self.busy: dict[Any, tuple[int, int]] = {}
        self.replicas: list[Sized] = []
        self.heard: list[Any] = []
        self.ack_delays = AckDelays()
        self.reachable = True
        self.meanwhile: Callable[[], None] = lambda: None
        self.refuses_from = 1 << 30
        self.now = 100.0
        self.pacer = Pacer()
        machine = Machine(lambda: self.now, lambda: 2.0, lambda: 77, lambda: (40, 100), lambda: LOOP)
        shares = TenantShares(
            self, lambda: EMPTY_IMAGE, lambda: self.now, ShareSettings(), TenantSettings(), NoTrail(), 0
        )
        given: list[Any] = [self.book, self, self, machine, self.pacer, lambda: 9, 5.0, shares]
        self.reporter = UsageReporter(*given)

    def __iter__(self) -> Iterator[Sized]:
        return iter(self.replicas)

    def take_busy(self) -> dict[Any, tuple[int, int]]:
        busy, self.busy = self.busy, {}
        return busy

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        if not self.reachable:
            raise ControllerUnavailable("nobody")
        if len(self.heard) >= self.refuses_from:
            return ReportUsageResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        self.heard.append(request)
        self.meanwhile()
        return ReportUsageResponse(error_code=0, shares=[])

    def bound_tenant(self, tenant: str, reason: str, bound: TenantBound) -> None:
        raise AssertionError("no tenant has a quota")

    async def reported(self, passed_s: float = 5.0) -> list[Any]:
        """The requests of the next round."""
        self.now += passed_s
        self.heard = []
        await self.reporter.report()
        return self.heard


def uses(usage: Usage, received: int) -> None:
    usage.received += received
    usage.served(0.5)


async def test_a_round_names_those_that_used_something_since_they_were_taken() -> None:
    world = World()
    uses(world.book.of("lkc-aaaaaa"), 10)
    uses(world.book.operators, 5)
    world.book.of("lkc-bbbbbb").throttled(ThrottleReason.CONNECTION_RATE, 70)
    (request,) = [*await world.reported()][-1:]
    rows = [row for one in world.heard for row in one.tenants]
    assert {row.tenant: (row.bytes_in, row.requests, row.busy_ns) for row in rows} == {
        "lkc-aaaaaa": (10, 1, 500_000_000),
        "": (5, 1, 500_000_000),
    }
    assert (request.broker_id, request.broker_epoch, request.round) == (3, 9, 1)
    assert (request.bytes_in, request.requests, request.busy_ns) == (15, 2, 1_000_000_000)
    assert (request.uptime_ms, request.interval_ms, request.cpu_ms, request.moved_bytes) == (5_000, 5_000, 2_000, 77)
    assert (request.disk_used_bytes, request.disk_size_bytes) == (60, 100)
    assert (request.loop_jobs, request.loop_wait_ns, request.loop_service_ns) == (4, 2_000_000_000, 500_000_000)
    assert (request.loop_service_squares, request.loop_busy_ns) == (0.0625, 1_000_000_000)
    (request,) = await world.reported()
    assert (request.tenants, request.bytes_in, request.round, request.uptime_ms) == ([], 15, 2, 10_000)
    uses(world.book.operators, 5)
    assert [row.bytes_in for one in await world.reported() for row in one.tenants] == [10], "since the start"


async def test_what_no_controller_has_taken_is_reported_again() -> None:
    world = World()
    uses(world.book.operators, 5)
    world.reachable = False
    assert await world.reported() == []
    world.reachable, world.refuses_from = True, 0
    assert await world.reported() == []
    world.refuses_from = 1 << 30
    assert [row.tenant for one in await world.reported() for row in one.tenants] == [""]
    assert world.reporter.outcomes == {"answered": 1, "unanswered": 2}


async def test_a_round_ends_at_the_first_piece_that_is_not_taken() -> None:
    world = World()
    for number in range(2 * ROWS_PER_PIECE):
        uses(world.book.of(f"lkc-{number:06}"), 1)
    world.refuses_from = 1
    await world.reported()
    world.refuses_from = 1 << 30
    rest = await world.reported()
    assert sum(len(one.tenants) for one in rest) == ROWS_PER_PIECE, "the first piece was taken"
    assert [one.piece for one in rest] == [0, 1] and [one.is_last for one in rest] == [False, True]


async def test_use_while_a_piece_is_under_way_is_not_lost() -> None:
    world = World()
    uses(world.book.operators, 5)
    world.meanwhile = lambda: uses(world.book.operators, 100)
    assert [row.bytes_in for one in await world.reported() for row in one.tenants] == [5]
    world.meanwhile = lambda: None
    assert [row.bytes_in for one in await world.reported() for row in one.tenants] == [205]


async def test_the_busiest_partitions_are_named_and_the_others_by_topic() -> None:
    world, first = World(), TOPICS_MAX + 10
    partitions = [Counted(number, 1_000 + number) for number in range(1, PARTITIONS_MAX + first)]
    world.busy = dict.fromkeys(partitions, (1_000, 0))
    heard = await world.reported()
    rows = [row for one in heard for row in one.partitions]
    assert [row.bytes_in for row in rows] == [*range(PARTITIONS_MAX + first - 1, first - 1, -1)]
    topics = {row.topic_id.int if row.topic_id else 0: row.bytes_in for one in heard for row in one.topics}
    left = first - 1 - TOPICS_MAX
    assert topics == {number: number for number in range(left + 1, first)} | {0: sum(range(left + 1))}
    assert sum(topics.values()) + sum(row.bytes_in for row in rows) == sum(range(PARTITIONS_MAX + first))
    assert max(len(one.tenants) + len(one.partitions) + len(one.topics) for one in heard) <= ROWS_PER_PIECE


async def test_a_round_over_very_much_is_gathered_in_slices() -> None:
    world = World()
    for number in range(MANY):
        world.book.of(f"lkc-{number}")
    world.busy = dict.fromkeys([Counted(number, number) for number in range(MANY)], (0, 0))
    slices = world.pacer.slices
    await world.reported()
    assert world.pacer.slices - slices > 2 * MANY * 2 / SLICE_COST / 2
    assert world.pacer.costliest <= 2 * SLICE_COST


def sized(heard: list[Any]) -> tuple[list[tuple[int, int, int]], int]:
    """Topic, partition and bytes of each row, and the bytes of all others."""
    rows = [(row.topic_id.int, row.partition_index, row.bytes) for one in heard for row in one.sizes]
    return rows, heard[-1].others_bytes


async def test_the_largest_replicas_are_told_now_and_then_and_the_others_added_up() -> None:
    world, count = World(), SIZES_MAX + 5
    world.replicas = [Sized(number) for number in range(1, count + 1)]
    heard = await world.reported()
    assert sized(heard) == ([(number, 7, number) for number in range(count, 5, -1)], 1 + 2 + 3 + 4 + 5)
    assert max(len(one.sizes) for one in heard) <= ROWS_PER_PIECE
    assert {one.others_bytes for one in heard[:-1]} == {-1}
    told = [sized(await world.reported())[1] for _ in range(2 * SIZES_EVERY)]
    assert [number for number, others in enumerate(told, 1) if others >= 0] == [SIZES_EVERY, 2 * SIZES_EVERY]


async def test_sizes_that_no_controller_has_taken_are_told_again() -> None:
    world = World()
    world.replicas = [Sized(9)]
    world.reachable = False
    await world.reported()
    world.reachable = True
    assert sized(await world.reported()) == ([(9, 7, 9)], 0)
    assert sized(await world.reported()) == ([], -1)


async def test_sizes_of_very_many_replicas_are_gathered_in_slices() -> None:
    world = World()
    world.replicas = [Sized(number) for number in range(MANY)]
    slices = world.pacer.slices
    await world.reported()
    assert world.pacer.slices - slices > 10
    assert world.pacer.costliest <= 2 * SLICE_COST


async def test_an_idle_broker_looks_at_no_partition() -> None:
    world = World()
    await world.reported()
    with counted_calls() as few:
        await world.reported()
    assert few.calls < 200


def test_the_largest_are_kept() -> None:
    largest = Largest[str](2)
    assert [largest.put(weight, str(weight)) for weight in (3, 1, 2, 2, 9)] == [None, None, "1", "2", "2"]
    assert largest.found() == ["9", "3"]


async def test_a_tenant_that_was_deleted_stays_in_the_total() -> None:
    world = World()
    uses(world.book.of("lkc-aaaaaa"), 10)
    world.book.of("lkc-aaaaaa").throttled(ThrottleReason.DISK, 1_500)
    await world.reported()
    world.book.forget("lkc-aaaaaa")
    (request,) = await world.reported()
    assert len(world.book) == 0 and request.tenants == [] and request.bytes_in == 10
    metrics = Metrics()
    world.reporter.register(metrics)
    text = metrics.text().decode()
    assert 'tidelog_client_throttled_seconds_total{reason="disk"} 1.5' in text
    assert 'tidelog_client_bytes_total{direction="in"} 10.0' in text


def test_the_time_of_work_in_a_lane_counts_for_whose_it_is() -> None:
    book = UsageBook()
    alpha = book.of("lkc-aaaaaa")
    for group in ("lkc-aaaaaa", ("User:ANONYMOUS", "h"), (NODES, "h"), "lkc-zzzzzz"):
        book.spent(group, 1.0)
    assert (alpha.busy_s, book.operators.busy_s, len(book)) == (1.0, 1.0, 1)


async def test_the_last_piece_tells_how_long_followers_took_since_the_round_before() -> None:
    world = World()
    uses(world.book.of("lkc-aaaaaa"), 10)
    sample = world.ack_delays.begin(7, 100, 1.0)
    assert sample is not None
    sample.acknowledged(1.4)
    *others, last = await world.reported()
    assert not any(piece.ack_delays for piece in others)
    (row,) = last.ack_delays
    assert (row.follower_id, row.samples) == (7, 1)
    assert 400_000 <= row.p99_us <= 480_000
    assert not any(piece.ack_delays for piece in await world.reported())


async def test_it_reports_at_its_interval_until_it_is_stopped() -> None:
    world = World()
    world.reporter.start()
    await asyncio.sleep(10.5)
    assert [one.round for one in world.heard] == [1, 2]
    await world.reporter.stop()
    await asyncio.sleep(10)
    assert len(world.heard) == 2


async def test_the_tenants_that_were_throttled_first_are_named() -> None:
    world = World()
    for number in range(THROTTLED_MAX + 5):
        world.book.of(f"lkc-{number:06}").throttled(ThrottleReason.SHARE, 2_000)
    world.book.operators.throttled(ThrottleReason.DISK, 7_000)
    await world.reported()
    metrics = Metrics()
    world.reporter.register(metrics)
    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("tidelog_tenant_throttle")]
    assert len(lines) == THROTTLED_MAX + 2, "the others for each reason"
    assert 'tidelog_tenant_throttle_seconds_total{reason="share",tenant="lkc-000000"} 2.0' in lines
    assert 'tidelog_tenant_throttle_seconds_total{reason="share",tenant="others"} 10.0' in lines
    assert 'tidelog_tenant_throttle_seconds_total{reason="disk",tenant="others"} 0.0' in lines
