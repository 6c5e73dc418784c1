"""A broker at its own limit holds its tenants back: in proportion to their quotas, and none below what it reserved.

Tenants' clients send and read as fast as the real throttle lets them, in virtual time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from broker.quotas.client_throttle import ClientThrottle
from broker.quotas.pressure import BrokerCounters, BrokerPressure
from broker.quotas.tenant_bounds import PRESSURE, SHARE
from broker.quotas.tenant_shares import TenantShares
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason, UsageBook
from common.metrics import Metrics
from common.node_settings.pressure import PressureSettings
from common.node_settings.quotas import QuotaSettings
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.pacing import SLICE_COST, Pacer, at_once
from kraft.image.delta import replayed
from kraft.image.tenants import EGRESS, EGRESS_RESERVED, INGRESS, INGRESS_RESERVED
from kraft.quotas.tenant_quotas import Resource
from kraft.records import TenantRecord
from records.audit_event import AuditKind
from tests.broker.quota_world import Trail
from tests.common.call_count import counted_calls
from tests.kraft.tenants import cells_of_three
from wire.apis import ApiKey
from wire.messages import ReportUsageResponse

pytestmark = pytest.mark.virtual_time

MB = 1_000_000
STEP_S = 0.02
A, B, C, D = "lkc-aaaaaa", "lkc-bbbbbb", "lkc-cccccc", "lkc-dddddd"
PRODUCE, FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)


class Muted:
    def count_in(self, _: object) -> None: ...


class Client:
    """All connections of a tenant, or of an operator: it offers `rate` bytes per second, in requests of `STEP_S`."""

    def __init__(self, world: World, tenant: str | None, api_key: int) -> None:
        self._world = world
        self._api_key = api_key
        self._usage = world.book.of(tenant)
        self._session = ClientSession("CLIENTS", False, "10.0.0.1", Muted(), tenant=tenant, usage=self._usage)
        self.rate = 0
        self.busy_s = 0.0
        self.served = 0
        self._muted_until_s = 0.0

    def step(self, now: float) -> None:
        size = int(self.rate * STEP_S)
        if now < self._muted_until_s or not (size or self.busy_s):
            return
        usage, fetches = self._usage, self._api_key == FETCH
        if fetches:
            refused_ms = self._world.throttle.refuses_ms(self._session, "c", size)
            if refused_ms:
                self._muted_until_s = now + refused_ms / 1000
                return
        self.served += size
        usage.served(self.busy_s * STEP_S)
        usage.received += 0 if fetches else size
        usage.sent += size if fetches else 0
        self._world.moved += size
        in_bytes, out_bytes = (0, size) if fetches else (size, 0)
        pause_ms = self._world.throttle.charge(self._session, "c", self._api_key, in_bytes, out_bytes)
        self._muted_until_s = now + pause_ms / 1000


class World:
    def __init__(self, limits: Mapping[str, Mapping[str, int]], **settings: Any) -> None:
        tenants = [TenantRecord(tenant, tenant, "east", 0, dict(own)) for tenant, own in limits.items()]
        self.image = replayed(cells_of_three(), tenants)
        self.now = 1_000.0
        self.moved = self.jobs = 0
        self.waited_s = 0.0
        self.book, self.trail = UsageBook(), Trail()
        self.throttle = ClientThrottle(QuotaSettings(), lambda: self.now)
        self.shares = TenantShares(
            self.throttle, lambda: self.image, lambda: self.now, ShareSettings(), TenantSettings(), self.trail, 0
        )
        self.pressure = BrokerPressure(
            book=self.book,
            bounds=self.throttle,
            shares=self.shares,
            settings=PressureSettings(**({"ingress": 9 * MB, "egress": 9 * MB} | settings)),
            counters=lambda: BrokerCounters(self.jobs, self.waited_s, self.moved),
            bandwidth=lambda: 9 * MB,
            now=lambda: self.now,
            pacer=Pacer(),
            trail=self.trail,
        )
        self.clients: dict[str | None, Client] = {}

    def offer(self, tenant: str | None, rate: int, api_key: int = PRODUCE, busy_s: float = 0.0) -> Client:
        client = self.clients.setdefault(tenant, Client(self, tenant, api_key))
        client.rate, client.busy_s = rate, busy_s
        return client

    def pass_time(self, seconds: float, *, wait_s: float = 0.0) -> dict[str | None, float]:
        """Bytes per second that each tenant was served. `wait_s`: what each of 100 requests in a second waits."""
        before = {tenant: client.served for tenant, client in self.clients.items()}
        for _ in range(int(seconds)):
            for _ in range(int(1 / STEP_S)):
                self.now += STEP_S
                for client in self.clients.values():
                    client.step(self.now)
            self.jobs, self.waited_s = self.jobs + 100, self.waited_s + 100 * wait_s
            if self.pressure.look():
                at_once(self.pressure.look_at_tenants())
        return {tenant: (client.served - before[tenant]) / int(seconds) for tenant, client in self.clients.items()}

    def waited_ms(self, tenant: str, reason: ThrottleReason = PRESSURE) -> int:
        return self.book.of(tenant).throttled_ms.get(reason, 0)


QUOTAS = {A: {INGRESS: 30 * MB}, B: {INGRESS: 15 * MB}, C: {INGRESS: 6 * MB}}
"""10, 5 and 2 MB/s on each of three brokers."""


async def test_rates_are_in_proportion_to_quotas_on_overload() -> None:
    world = World(QUOTAS)
    for tenant in QUOTAS:
        world.offer(tenant, 6 * MB)
    world.pass_time(30)
    rates = world.pass_time(60)
    for tenant, quota in ((A, 10), (B, 5), (C, 2)):
        assert rates[tenant] == pytest.approx(9 * MB * 0.9 * quota / 17, rel=0.1), tenant
        assert world.waited_ms(tenant) > 0 and not world.waited_ms(tenant, SHARE)


async def test_shares_count_where_a_tenant_has_them() -> None:
    world = World(QUOTAS)
    given = ReportUsageResponse.TenantShares(tenant=C, ingress=5 * MB, egress=-1, busy=-1, connections_elsewhere=-1)
    world.shares.take([C], ReportUsageResponse(error_code=0, keep=False, shares=[given]))
    for tenant in (B, C):
        world.offer(tenant, 6 * MB)
    world.pass_time(30)
    rates = world.pass_time(30)
    assert rates[C] == pytest.approx(rates[B], rel=0.1)


async def test_a_tenant_keeps_what_it_has_reserved() -> None:
    world = World(QUOTAS | {D: {INGRESS: 6 * MB, INGRESS_RESERVED: 4 * MB}})
    for tenant in (A, B, C):
        world.offer(tenant, 8 * MB)
    world.offer(D, 4 * MB)
    world.pass_time(30)
    rates = world.pass_time(60)
    assert rates[D] == pytest.approx(4 * MB, rel=0.02), "its part without would be 0.9 MB/s"
    assert sum(rates.values()) == pytest.approx(9 * MB * 0.9, rel=0.05)
    assert rates[A] == pytest.approx(5 * rates[C], rel=0.1)


async def test_readers_are_held_back_likewise() -> None:
    world = World({A: {EGRESS: 60 * MB}, B: {EGRESS: 30 * MB, EGRESS_RESERVED: 4 * MB}, C: {}})
    for tenant in (A, B, C):
        world.offer(tenant, 6 * MB, FETCH)
    world.pass_time(30)
    rates = world.pass_time(60)
    assert rates[B] == pytest.approx(4 * MB, rel=0.1)
    assert rates[A] + rates[C] == pytest.approx(4.1 * MB, rel=0.1)


async def test_a_bound_counts_for_what_comes_and_not_for_what_was() -> None:
    """Each tenant was free for a while, so its window is full of what it may no longer use."""
    world = World(QUOTAS)
    world.offer(A, 7 * MB)
    world.pass_time(30)
    assert not world.pressure.held
    world.offer(B, 7 * MB)
    world.pass_time(3)
    assert world.pass_time(5)[A] > 3 * MB, "it is not silent until its old use is paid for"


async def test_operators_clients_are_not_held_back_but_count() -> None:
    world = World(QUOTAS)
    world.offer(None, 4 * MB)
    for tenant in (A, B):
        world.offer(tenant, 6 * MB)
    world.pass_time(30)
    rates = world.pass_time(30)
    assert rates[None] == pytest.approx(4 * MB, rel=0.01)
    assert rates[A] + rates[B] == pytest.approx(4.1 * MB, rel=0.1)


async def test_it_ends_and_is_told_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world = World(QUOTAS)
    for tenant in (A, B):
        world.offer(tenant, 6 * MB)
    world.pass_time(40)
    assert world.pressure.held.keys() == {Resource.INGRESS}
    world.offer(B, MB)
    world.pass_time(60)
    assert world.pressure.held == {}
    assert world.pass_time(20) == {A: pytest.approx(6 * MB, rel=0.02), B: pytest.approx(MB, rel=0.02)}
    began, ended = world.trail.acts
    assert (began.event, ended.event) == (AuditKind.PRESSURE_BEGAN, AuditKind.PRESSURE_ENDED)
    assert began.cause == "tidelog.broker.ingress.bytes.per.second" and began.after["tenants"] == 2
    assert set(began.after["uses_and_may"]) == {A, B}
    lines = [record.getMessage() for record in caplog.records if record.name == "broker.quotas.pressure"]
    assert [line.split(" its limit ")[0] for line in lines] == ["this broker is at", "this broker is below"]
    metrics = Metrics()
    world.pressure.register(metrics)
    text = metrics.text()
    seconds = world.pressure.seconds[Resource.INGRESS]
    assert f'tidelog_broker_pressure_seconds_total{{limit="ingress"}} {seconds:g}'.encode() in text
    assert 40 <= seconds < 80 and b"tidelog_broker_tenants_held 0" in text


async def test_a_dry_run_tells_and_holds_nobody(caplog: pytest.LogCaptureFixture) -> None:
    world = World(QUOTAS, dry_run=True)
    for tenant in (A, B):
        world.offer(tenant, 6 * MB)
    assert world.pass_time(40) == {A: 6 * MB, B: 6 * MB}
    assert world.pressure.held and not world.waited_ms(A) and not world.trail.acts
    assert [record.getMessage() for record in caplog.records] == [
        "this broker is at its limit and would hold its tenants back"
    ]


async def test_long_waits_take_time_of_the_loop_from_those_that_use_it() -> None:
    """Requests wait while tenants use more than 0.6 of the loop together."""
    world = World({A: {}, B: {}, C: {INGRESS_RESERVED: 10_000}})
    world.offer(A, 10_000, busy_s=0.7)
    world.offer(B, 10_000, busy_s=0.1)
    world.offer(C, 10_000, busy_s=0.15)
    served = [dict.fromkeys((A, B, C), 0.0)]
    assert world.pass_time(10, wait_s=0.02)[A] == pytest.approx(10_000, rel=0.02)
    assert not world.pressure.looks_at_tenants
    busy_s, waits = 0.95, 0
    for _ in range(90):
        before = sum(world.book.of(tenant).busy_s for tenant in (A, B, C))
        waits += busy_s > 0.6
        served.append(world.pass_time(1, wait_s=0.2 if busy_s > 0.6 else 0.0))  # type: ignore[arg-type]
        busy_s = sum(world.book.of(tenant).busy_s for tenant in (A, B, C)) - before
    rates = {tenant: sum(one[tenant] for one in served[30:]) / len(served[30:]) for tenant in (A, B, C)}
    assert rates[C] == pytest.approx(10_000, rel=0.02), "its reserved bytes take this time of the loop"
    assert rates[B] == pytest.approx(10_000, rel=0.1), "it uses less than an even part"
    assert rates[A] < 7_000 and world.waited_ms(A) > 0 and waits < 45
    for tenant in (A, B, C):
        world.offer(tenant, 10_000, busy_s=0.05)
    world.pass_time(120)
    assert world.pressure.held == {} and world.pass_time(10)[A] == pytest.approx(10_000, rel=0.02)


async def test_a_hiccup_and_a_few_slow_requests_hold_nobody() -> None:
    world = World({A: {}})
    world.offer(A, 10_000, busy_s=0.5)
    for _ in range(10):
        world.pass_time(1, wait_s=0.5)
        world.pass_time(1)
    world.waited_s += 0.9  # of the requests of the next second
    world.pass_time(1)
    assert not world.pressure.held and not world.waited_ms(A)


async def test_far_from_the_limits_no_tenant_is_looked_at() -> None:
    world = World(QUOTAS)
    world.offer(A, 7 * MB)
    world.pass_time(20)
    with counted_calls() as count:
        assert not world.pressure.look()
    assert world.pressure.looks_at_tenants == 0 and count.calls < 40


async def test_many_tenants_are_looked_at_in_slices() -> None:
    world = World({})
    for number in range(20_000):
        world.book.of(f"lkc-{number:06}").received += 1
    world.moved = 100 * MB
    costs = []
    for _ in range(2):
        world.now += 1.0
        world.moved += 100 * MB
        for number in range(20_000):
            world.book.of(f"lkc-{number:06}").received += number
        assert world.pressure.look()
        costs += list(world.pressure.look_at_tenants())
    assert sorted(costs)[-10] <= SLICE_COST < max(costs) <= 4_000, "all claims are weighed at once"
    held = world.pressure.held[Resource.INGRESS].bounds
    assert len(held) == 1_000 and "lkc-019999" in held and "lkc-000001" not in held


async def test_it_can_be_switched_off() -> None:
    world = World(QUOTAS, enable=False)
    world.pressure.start()
    await world.pressure.stop()
    world.offer(A, 0)
    assert world.pressure.looks_at_tenants == 0
