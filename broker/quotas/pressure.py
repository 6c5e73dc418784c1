"""Holds tenants back while this broker is at one of its limits: bytes in, bytes out, or how long requests wait.

Once a second it looks at a few counters of the whole broker. Only while these are near a limit it looks at tenants, in
slices: then two looks give their rates, from which `kraft.quotas.pressure` computes what each may use. Operators'
clients and other nodes are not held back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.quotas.tenant_bounds import NO_BOUND, PRESSURE, TenantBound, TenantBounds
from broker.quotas.tenant_shares import NS, TenantShares
from broker.security.usage import Usage, UsageBook
from common.lifecycle import duty, end_task
from common.metrics import Metrics
from common.node_settings.pressure import PressureSettings
from common.pacing import Pacer, Work
from kraft.quotas.pressure import FULL, Claim, QueueLimit, pressed
from kraft.quotas.tenant_quotas import RESOURCES, Resource
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act, AuditTrail, inform

logger = logging.getLogger(__name__)

LOOK_S = 1.0
HOLD_S = 12.0
"""What holds tenants back goes on for so long after it was last needed: a client that has to wait may be silent for a
window, and wants as much afterwards."""
QUEUED_MIN = 1.0
"""Requests that wait at any moment (seconds that they waited in a second): fewer are no queue, however long they do."""
LOOKED_AT_ONCE, LOOK_COST = 50, 4  # tenants in a slice, and units of `common.pacing` of each
DEADBAND = 0.05
"""A bound changes by more than this part of it, because a window starts over a little with each change."""
NAMED_MAX = 5  # tenants in a log line
LIMIT_OF = {
    Resource.INGRESS: "tidelog.broker.ingress.bytes.per.second",
    Resource.EGRESS: "tidelog.broker.egress.bytes.per.second",
    Resource.BUSY: "tidelog.broker.queue.wait.ms",
}


TENANTS_MAX = 1_000
"""Tenants that are held back at once, those that use most: what others use is left to them."""
CLAIM_COST = 8  # units of `common.pacing` of a tenant, for each resource
Rates = tuple[float, float, float]
"""Per second, by `Resource`."""


class BrokerCounters(NamedTuple):
    """Since the broker's start. `jobs` have waited `waited_s` seconds together; `moved` is bytes of all sockets."""

    jobs: int = 0
    waited_s: float = 0.0
    moved: int = 0


class Seen(NamedTuple):
    """A tenant's counters at one look. `waited_ms`: of its clients, for the pressure."""

    received: int
    sent: int
    busy_s: float
    waited_ms: int

    @classmethod
    def of(cls, usage: Usage) -> Seen:
        return cls(usage.received, usage.sent, usage.busy_s, usage.throttled_ms.get(PRESSURE, 0))


class Held(NamedTuple):
    """One resource for which tenants are held back: their bounds, and until when at least."""

    since_s: float
    until_s: float
    bounds: Mapping[str, float]


class BrokerPressure:
    """Owns one task. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        book: UsageBook,
        bounds: TenantBounds,
        shares: TenantShares,
        settings: PressureSettings,
        counters: Callable[[], BrokerCounters],
        bandwidth: Callable[[], int],
        now: Callable[[], float],
        pacer: Pacer,
        trail: AuditTrail,
    ) -> None:
        """`bandwidth`: bytes per second of each broker of the cell, 0 for any."""
        self._book = book
        self._bounds = bounds
        self._shares = shares
        self._settings = settings
        self._counters = counters
        self._bandwidth = bandwidth
        self._now = now
        self._pacer = pacer
        self._trail = trail
        self._task: asyncio.Task[None] | None = None
        self._looked_s, self._before = now(), counters()
        self._tenants_looked_s = self._looked_s
        self._seen: dict[str, Seen] = {}
        self._seen_others: Seen | None = None
        self._wanting: dict[str, float] = {}  # until when a tenant that had to wait counts as wanting more
        self._queue = QueueLimit()
        self._queue_over = False
        self._limits: dict[Resource, float] = {}
        self.held: dict[Resource, Held] = {}
        self._bounded: dict[str, TenantBound] = {}
        self.seconds = dict.fromkeys(RESOURCES, 0.0)
        """For how long tenants were held back, by what for."""
        self.looks_at_tenants = 0

    def start(self) -> None:
        if self._settings.enable:
            self._task = asyncio.create_task(self._watch(), name=duty("pressure"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self.look():
                await self._pacer.run(self.look_at_tenants(), "pressure", own=True)

    # the broker --------------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Whether the broker may be near a limit, so that `look_at_tenants` is called for."""
        now, counted = self._now(), self._counters()
        passed_s, before = now - self._looked_s, self._before
        if passed_s <= 0:
            return False
        self._looked_s, self._before = now, counted
        jobs, waited_s = counted.jobs - before.jobs, counted.waited_s - before.waited_s
        most_s = self._settings.queue_wait_s
        self._queue_over = bool(most_s) and waited_s > most_s * max(jobs, 1) and waited_s >= QUEUED_MIN * passed_s
        bandwidth = self._bandwidth()
        limits = {
            Resource.INGRESS: self._settings.ingress or bandwidth,
            Resource.EGRESS: self._settings.egress or bandwidth,
        }
        self._limits = {resource: float(limit) for resource, limit in limits.items() if limit}
        moved = (counted.moved - before.moved) / passed_s  # more than what clients send or are sent
        near = self._queue_over or self._queue.factor < 1.0 or bool(self.held)
        near = near or any(moved > limit * FULL for limit in self._limits.values())
        if not near:
            self._queue.step(False, 0.0)
            self._seen.clear()
            self._seen_others = None
            self._wanting.clear()
        return near

    # its tenants -------------------------------------------------------------------------------------------

    def look_at_tenants(self) -> Work[None]:
        self.looks_at_tenants += 1
        now = self._looked_s
        passed_s, self._tenants_looked_s = max(now - self._tenants_looked_s, LOOK_S / 2), now
        rates: dict[str, Rates] = {}
        seen: dict[str, Seen] = {}
        for number, tenant in enumerate(list(self._book.tenants()), 1):
            usage = self._book.get(tenant)
            if usage is not None:
                before, seen[tenant] = self._seen.get(tenant), Seen.of(usage)
                found = _rates(before, seen[tenant], passed_s)
                if before is not None and seen[tenant].waited_ms > before.waited_ms:
                    self._wanting[tenant] = now + HOLD_S
                if any(found) or now < self._wanting.get(tenant, now):
                    rates[tenant] = found
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST
        operators = Seen.of(self._book.operators)
        others, self._seen_others, self._seen = _rates(self._seen_others, operators, passed_s), operators, seen
        self._wanting = {tenant: until_s for tenant, until_s in self._wanting.items() if now < until_s}
        rates, others = _largest(rates, others)
        yield len(rates)
        yield from self._decide(rates, others, now)
        yield from self._bound()

    def _decide(self, rates: Mapping[str, Rates], others: Rates, now: float) -> Work[None]:
        """What tenants may use of each resource from now on."""
        busy = self._queue.step(self._queue_over, sum(one[Resource.BUSY] for one in rates.values()))
        for resource in RESOURCES:
            limit = busy if resource is Resource.BUSY else self._limits.get(resource)
            found: dict[str, float] = {}
            if limit is not None:
                claims = yield from self._claims(resource, rates)
                is_time = resource is Resource.BUSY  # of operators' clients it is not known how much of it is needed
                found = pressed(limit, claims, 0.0 if is_time else others[resource], 1.0 if is_time else FULL)
            held = self.held.get(resource)
            if found:
                before = {} if held is None else held.bounds
                settled = {tenant: _settled(before.get(tenant), one) for tenant, one in found.items()}
                self.held[resource] = Held(now if held is None else held.since_s, now + HOLD_S, settled)
                if held is None:
                    self._begins(resource, limit or 0.0, rates, settled)
            elif held is not None and (now >= held.until_s or limit is None):
                del self.held[resource]
                self._ends(resource, now - held.since_s)
            if resource in self.held:
                self.seconds[resource] += LOOK_S
            yield len(rates) * LOOK_COST

    def _claims(self, resource: Resource, rates: Mapping[str, Rates]) -> Work[dict[str, Claim]]:
        claims = {}
        for number, (tenant, one) in enumerate(rates.items(), 1):
            claims[tenant] = self._claim(tenant, resource, one)
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * CLAIM_COST
        return claims

    def _claim(self, tenant: str, resource: Resource, rates: Rates) -> Claim:
        held = self.held.get(resource)
        is_held = held is not None and tenant in held.bounds and tenant in self._wanting
        quota = self._shares.allocated(tenant, resource)
        allocated = None if quota is None else quota / NS if resource is Resource.BUSY else float(quota)
        return Claim(rates[resource], allocated, self._reserved(tenant, resource, rates), is_held)

    def _reserved(self, tenant: str, resource: Resource, rates: Rates) -> float:
        ingress, egress = self._shares.reserved(tenant)
        if resource is not Resource.BUSY:
            return float(ingress if resource is Resource.INGRESS else egress)
        # The time of the loop that the reserved bytes take, as far as the bytes of now tell.
        parts = [most / rate for most, rate in ((ingress, rates[0]), (egress, rates[1])) if most and rate > 0]
        return rates[Resource.BUSY] * max(parts, default=0.0)

    def _bound(self) -> Work[None]:
        """Have the tenants' requests held to what was decided."""
        wanted: dict[str, list[float | None]] = {}
        if not self._settings.dry_run:
            for resource, held in self.held.items():
                for tenant, bound in held.bounds.items():
                    wanted.setdefault(tenant, [None, None, None])[resource] = bound
        for number, tenant in enumerate(list({**self._bounded, **wanted}), 1):
            ingress, egress, busy = wanted.get(tenant, (None, None, None))
            held_to = TenantBound(ingress, egress, busy)
            if held_to != self._bounded.get(tenant, NO_BOUND):
                self._bounds.bound_tenant(tenant, PRESSURE, held_to)
            if held_to == NO_BOUND:
                self._bounded.pop(tenant, None)
            else:
                self._bounded[tenant] = held_to
            if number % LOOKED_AT_ONCE == 0:
                yield LOOKED_AT_ONCE * LOOK_COST

    # what is shown ------------------------------------------------------------------------------------------

    def _begins(
        self,
        resource: Resource,
        limit: float,
        rates: Mapping[str, Rates],
        bounds: Mapping[str, float],
    ) -> None:
        most = sorted(bounds, key=lambda tenant: -rates[tenant][resource])[:NAMED_MAX]
        used = round(sum(one[resource] for one in rates.values()), 3)
        named = {tenant: [round(rates[tenant][resource], 3), round(bounds[tenant], 3)] for tenant in most}
        logger.warning(
            "this broker is at its limit and %s its tenants back",
            "would hold" if self._settings.dry_run else "holds",
            extra={"setting": LIMIT_OF[resource], "limit": round(limit, 3), "used": used, "uses_and_may": named},
        )
        if not self._settings.dry_run:
            after = {"limit": round(limit, 3), "used": used, "tenants": len(bounds), "uses_and_may": named}
            inform(self._trail, Act(AuditKind.PRESSURE_BEGAN, cause=LIMIT_OF[resource], after=after))

    def _ends(self, resource: Resource, seconds: float) -> None:
        logger.info(
            "this broker is below its limit again and holds no tenants back for it",
            extra={"setting": LIMIT_OF[resource], "seconds": round(seconds)},
        )
        if not self._settings.dry_run:
            before = {"seconds": round(seconds)}
            inform(self._trail, Act(AuditKind.PRESSURE_ENDED, cause=LIMIT_OF[resource], before=before))

    def register(self, metrics: Metrics) -> None:
        metrics.family(
            "tidelog_broker_pressure_seconds_total",
            lambda: [({"limit": resource.name.lower()}, seconds) for resource, seconds in self.seconds.items()],
        )
        metrics.gauge("tidelog_broker_tenants_held", lambda: len(self._bounded))
        metrics.gauge("tidelog_broker_queue_factor", lambda: self._queue.factor)


def _rates(before: Seen | None, after: Seen, passed_s: float) -> Rates:
    """Per second, by resource; 0 where it is not known."""
    if before is None:
        return 0.0, 0.0, 0.0
    return (
        (after.received - before.received) / passed_s,
        (after.sent - before.sent) / passed_s,
        (after.busy_s - before.busy_s) / passed_s,
    )


def _largest(rates: dict[str, Rates], others: Rates) -> tuple[dict[str, Rates], Rates]:
    """At most `TENANTS_MAX` tenants, and what all others use."""
    if len(rates) <= TENANTS_MAX:
        return rates, others
    ordered = sorted(rates, key=lambda tenant: -sum(rates[tenant]))
    left = [rates[tenant] for tenant in ordered[TENANTS_MAX:]]
    ingress, egress, busy = (other + sum(one[at] for one in left) for at, other in enumerate(others))
    return {tenant: rates[tenant] for tenant in ordered[:TENANTS_MAX]}, (ingress, egress, busy)


def _settled(before: float | None, bound: float) -> float:
    return before if before is not None and abs(bound - before) <= DEADBAND * before else bound
