"""Tenants' quotas for ten minutes: clients that offer more than their tenant's quota, at brokers that act on shares,
while reports are lost, doubled, late or absurd, and the controller that splits the quota dies.

A broker runs the product's reports, shares and throttle. Clients are at its side: they send, and wait when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from broker.partitions.ack_delays import AckDelays
from broker.quotas.client_throttle import ClientThrottle
from broker.quotas.tenant_shares import TenantShares
from broker.security.session import ClientSession
from broker.security.usage import UsageBook
from broker.usage_report import Machine, UsageReporter
from common.errors import OutcomeUnknown
from common.loop_load import LoopCounters
from common.node_settings.quotas import QuotaSettings
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.pacing import Pacer
from common.ports import Ports
from kraft.image.tenants import INGRESS
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from storage.audit.audit_trail import NoTrail
from tests.sim.cluster_settings import broker_name
from tests.sim.dataless_broker import CALL_S, DatalessBroker
from tests.sim.dataless_world import FETCH_S, LIFECYCLE, LOOK_S, REPORT_S, UP_S, DatalessWorld
from tests.sim.invariants import InvariantBroken
from wire.apis import ApiKey
from wire.messages import CreateTenantRequest, ReportUsageRequest

NOISY, STEADY, FREE = "noisy", "steady", "free"
QUOTA = 900_000
QUOTAS = {NOISY: QUOTA, STEADY: QUOTA, FREE: 0}
Load = Mapping[str, tuple[float, ...]]
"""Of each tenant at each broker, as parts of QUOTA. The steady one stays below its quota, the free one has none."""
CALM: Load = {NOISY: (0.3, 0.1, 0.0), STEADY: (0.35, 0.15, 0.1), FREE: (0.0, 0.0, 5.0)}
NOISE: Load = {**CALM, NOISY: (3.0, 1.0, 0.0)}
NOISE_ELSEWHERE: Load = {**CALM, NOISY: (0.0, 0.5, 3.0)}
TURN_S = 0.1  # of a client: it sends what is due, as one request
CALM_S, SETTLE_S, HELD_S, FAILOVER_S, FREED_S = 60.0, 60.0, 60.0, 90.0, 120.0
HELD_MIN, HELD_MAX = 0.85, 1.05
"""Of the quota, over a minute of noise: a silent broker's share is given to no other, and windows begin with some."""
UNDISTURBED_MIN = 0.95
COUNTED_MAX = 1.25
"""Of what a steady tenant really uses: a report tells of whole requests, which come ten times a second."""
FAULT_SHARE = 0.05
"""Of the reports, for each kind of fault."""
LATE_S = 7.0
ABSURD = 1 << 62
PRODUCE = int(ApiKey.PRODUCE)
CREATE_TENANT_VERSION = 0


class _NoPartitions:
    """What a broker hosts: nothing."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.ack_delays = AckDelays()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def take_busy(self) -> dict[Any, tuple[int, int]]:
        return {}


class _Unseen:
    """The connection of a session whose client is simulated."""

    def count_in(self, _: object) -> None: ...
    def tell_of_frames(self, _: object) -> None: ...


class FaultyReports:
    """Calls of the controller, some of which are lost, not answered, sent twice, followed by an old one, or absurd."""

    def __init__(self, calls: ControllerCalls, random: Random) -> None:
        self._calls, self._random = calls, random
        self._before: Any = None
        self._late: set[asyncio.Task[None]] = set()

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        fault = int(self._random.random() / FAULT_SHARE)
        if fault == 0:
            raise ControllerUnavailable("this report is lost")
        if fault == 1 and self._before is not None:
            task = asyncio.create_task(self._sends_late(self._before, version), name="late-report")
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        self._before = request
        if fault == 2:
            await self._ignored(_absurd(request), version)
        answer = await self._calls.call(request, version, timeout_s=timeout_s, repeatable=repeatable)
        if fault == 3:
            raise OutcomeUnknown("this answer is lost")
        if fault == 4:
            return await self._calls.call(request, version, timeout_s=timeout_s, repeatable=repeatable)
        return answer

    async def _sends_late(self, request: Any, version: int) -> None:
        await asyncio.sleep(LATE_S)
        await self._ignored(request, version)

    async def _ignored(self, request: Any, version: int) -> None:
        with contextlib.suppress(ControllerUnavailable, OutcomeUnknown):
            await self._calls.call(request, version, timeout_s=CALL_S)


def _absurd(request: ReportUsageRequest) -> ReportUsageRequest:
    """The same round with a huge counter, and a tenant that has used less than nothing."""
    rows = [
        ReportUsageRequest.TenantUsageReport(tenant=row.tenant, bytes_in=-1, throttled=[]) for row in request.tenants
    ]
    return ReportUsageRequest(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        round=request.round,
        piece=request.piece,
        is_last=request.is_last,
        uptime_ms=request.uptime_ms,
        bytes_in=ABSURD,
        interval_ms=request.interval_ms,
        tenants=rows,
        partitions=[],
        topics=[],
    )


class QuotasBroker(DatalessBroker):
    def __init__(self, ports: Ports, broker_id: int, fatal: Callable[[str], None]) -> None:
        super().__init__(ports, broker_id, fatal, None, LIFECYCLE, fetch_wait_s=FETCH_S)
        now = ports.clock.monotonic
        self.book = UsageBook()
        self.throttle = ClientThrottle(QuotaSettings(), now)
        self.shares = TenantShares(
            self.throttle, lambda: self.image, now, ShareSettings(), TenantSettings(), NoTrail(), broker_id
        )
        self.observer.subscribe(self.throttle.metadata_changed)
        self.observer.subscribe(self.shares.metadata_changed)
        hosted: Any = _NoPartitions(broker_id)
        self.reporter = UsageReporter(
            book=self.book,
            hosted=hosted,
            channel=FaultyReports(self._channel, ports.random),
            machine=Machine(now, lambda: 0.0, lambda: 0, lambda: (1, 2), LoopCounters),
            pacer=Pacer(),
            broker_epoch=lambda: self.image.brokers[broker_id].epoch,
            interval_s=REPORT_S,
            shares=self.shares,
        )

    async def report_for_ever(self) -> None:
        while not await self.observer.wait_until(lambda image: self._broker_id in image.brokers, CALL_S):
            pass
        while True:
            await asyncio.sleep(REPORT_S)
            await self.reporter.report()

    async def client_for_ever(self, tenant: str, part: Callable[[], float], sent: Callable[[int], None]) -> None:
        """One client of a tenant, which has `part` of QUOTA to send, and tells what it `sent`."""
        while not await self.observer.wait_until(lambda _: self.tenant_id(tenant) is not None, CALL_S):
            pass
        known = self.tenant_id(tenant) or ""
        session = ClientSession("TENANTS", False, "10.0.0.1", _Unseen(), tenant=known)
        usage = self.book.of(known)
        session.grant(usage)
        while True:
            await asyncio.sleep(TURN_S)
            size = int(part() * QUOTA * TURN_S)
            if size:
                usage.received += size
                session.usage.served(0.001)
                sent(size)
                await asyncio.sleep(self.throttle.charge(session, b"client", PRODUCE, size, 0) / 1000)

    def tenant_id(self, name: str) -> str | None:
        return next((tenant.id for tenant in self.image.tenants.values() if tenant.name == name), None)

    def throttled_ms(self, tenant: str) -> int:
        usage = self.book.get(self.tenant_id(tenant) or "")
        return 0 if usage is None else sum(usage.throttled_ms.values())

    def share(self, tenant: str) -> int:
        """Of bytes that clients send; -1 for none."""
        return self.shares.of(self.tenant_id(tenant) or "").ingress

    async def create_tenants(self) -> None:
        limit = CreateTenantRequest.NewTenantLimit
        for name, quota in QUOTAS.items():
            limits = [limit(name=INGRESS, value=quota)] if quota else []
            while self.tenant_id(name) is None:
                request = CreateTenantRequest(tenant_name=name, cell=None, limits=limits)
                await self.ask(request, CREATE_TENANT_VERSION)


class QuotasRun(DatalessWorld):
    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.load = CALM
        self.sent: dict[str, list[tuple[float, int]]] = {tenant: [] for tenant in QUOTAS}
        super().__init__(f"quotas {seed}", keep_trace=keep_trace)

    def make_broker(self, ports: Ports, broker: int, fatal: Callable[[str], None]) -> QuotasBroker:
        return QuotasBroker(ports, broker, fatal)

    async def serve(self, broker: int, program: DatalessBroker) -> None:
        assert isinstance(program, QuotasBroker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(program.report_for_ever())
            if broker == 0:
                tasks.create_task(program.create_tenants())
            for tenant in QUOTAS:
                tasks.create_task(
                    program.client_for_ever(
                        tenant,
                        lambda one=tenant: self.load[one][broker],  # type: ignore[misc]
                        lambda size, one=tenant: self.sent[one].append((self.world.now_s, size)),  # type: ignore[misc]
                    )
                )

    # -- what is seen

    def brokers(self) -> list[QuotasBroker]:
        found = [self.world.nodes[broker_name(number)].program for number in range(self.BROKERS)]
        return [program for program in found if isinstance(program, QuotasBroker)]

    def rate(self, tenant: str, seconds: float) -> float:
        """What the tenant's clients sent in the last seconds, as a part of QUOTA."""
        since_s = self.world.now_s - seconds
        return sum(size for at_s, size in self.sent[tenant] if at_s > since_s) / seconds / QUOTA

    def throttled_ms(self, tenant: str) -> int:
        return sum(broker.throttled_ms(tenant) for broker in self.brokers())

    def shares(self, tenant: str) -> list[int]:
        return [share for broker in self.brokers() if (share := broker.share(tenant)) >= 0]

    def passes(self, seconds: float) -> None:
        """Time passes, and at no moment more is given than there is, or counted than was used."""
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.world.run_for(LOOK_S)
            for tenant in (NOISY, STEADY):
                if sum(self.shares(tenant)) > QUOTA:
                    raise InvariantBroken(self, f"the shares of tenant {tenant} are {self.shares(tenant)} of {QUOTA}")
            if self.throttled_ms(FREE):
                raise InvariantBroken(self, "a tenant without a quota is throttled")
            self._counts_once()

    def _counts_once(self) -> None:
        controller = self.active()
        if controller is None:
            return
        for number, broker in enumerate(self.brokers()):
            use = controller.usage.heard(number)
            one = None if use is None else use.tenants.get(broker.tenant_id(STEADY) or "")
            if one is not None and one.rates is not None:
                used = self.load[STEADY][number] * QUOTA
                if one.rates.bytes_in > COUNTED_MAX * used:
                    raise InvariantBroken(self, f"{one.rates.bytes_in:.0f} are counted, {used:.0f} are used")

    # -- the course

    def course(self) -> None:
        self.within(UP_S, lambda: f"brokers {down} are not active" if (down := self.inactive_brokers()) else "")
        self.within(UP_S, lambda: "a tenant is missing" if len(self.newest.tenants) < len(QUOTAS) else "")
        self.passes(CALM_S)
        for tenant in QUOTAS:
            if self.throttled_ms(tenant):
                raise InvariantBroken(self, f"tenant {tenant} uses less than its quota, and is throttled")
        self.load = NOISE
        self._is_held("at one broker")
        dead = self.kill_controller()
        self.passes(FAILOVER_S)
        if not HELD_MIN <= self.rate(NOISY, FAILOVER_S) <= HELD_MAX:
            raise InvariantBroken(self, f"{self.rate(NOISY, FAILOVER_S):.2f} of the quota over a failover")
        self.world.start(dead)
        self.load = NOISE_ELSEWHERE
        self._is_held("at other brokers")
        self.load = CALM
        self.passes(FREED_S)
        before = self.throttled_ms(NOISY)
        self.passes(CALM_S)
        if self.throttled_ms(NOISY) > before or self.shares(NOISY):
            raise InvariantBroken(self, f"tenant {NOISY} is held although it uses little: {self.shares(NOISY)}")
        steady = sum(CALM[STEADY])
        if self.rate(STEADY, self.world.now_s / 2) < UNDISTURBED_MIN * steady:
            raise InvariantBroken(self, f"tenant {STEADY} sends {self.rate(STEADY, CALM_S):.2f} instead of {steady}")

    def _is_held(self, where: str) -> None:
        """Its quota follows the demand, and is all that the tenant gets."""
        self.passes(SETTLE_S)
        self.passes(HELD_S)
        rate = self.rate(NOISY, HELD_S)
        if not HELD_MIN <= rate <= HELD_MAX:
            raise InvariantBroken(self, f"tenant {NOISY} offers much {where}, and sends {rate:.2f} of its quota")
