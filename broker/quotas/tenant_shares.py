"""The tenants' shares of their quotas at this broker, as the active controller last gave them.

A tenant without a share may use its whole quota here: one that uses more than all of it at one broker is over it for
certain. A broker that has not heard an active controller for a long time grants an even part of each quota, as it does
while the controller says so: then shares are switched off, or kept for a dry run alone. A tenant that moves to this
broker's cell has an even part too, and saves nothing up, until the controller has answered for it: else a tenant that
is held to its quota could use all of it, and a window's worth at once, at each of its new brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from broker.quotas.tenant_bounds import NO_BOUND, SHARE, TenantBound, TenantBounds
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.pacing import Work
from kraft.image.brokers import BrokerImage
from kraft.image.cells import cell_of
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import EGRESS_RESERVED, INGRESS_RESERVED, TenantImage, limit_of
from kraft.quotas.announced_tenants import AnnouncedTenants
from kraft.quotas.shares import even_share
from kraft.quotas.tenant_quotas import RESOURCES, CellBrokers, Resource, quotas_of
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act, AuditTrail, inform
from wire.messages import ReportUsageResponse

NS = 1e9
ARRIVAL_ANSWERS = 3
"""Answers that its quota is not split until a tenant that moves here counts as one that needs no share."""
SET_AT_ONCE, SET_COST = 50, 4  # tenants in one slice, and units of `common.pacing` of each


class Share(NamedTuple):
    """Per second, by `Resource`; -1 for no share. `connections_elsewhere`: at other brokers, -1 when unknown."""

    ingress: int = -1
    egress: int = -1
    busy: int = -1
    connections_elsewhere: int = -1


NO_SHARE = Share()


class TenantShares:
    """Times are seconds of one monotonic clock."""

    def __init__(
        self,
        bounds: TenantBounds,
        image: Callable[[], MetadataImage],
        now: Callable[[], float],
        settings: ShareSettings,
        defaults: TenantSettings,
        trail: AuditTrail,
        broker_id: int,
    ) -> None:
        self._broker_id = broker_id
        self._bounds = bounds
        self._image = image
        self._now = now
        self._stale_s = settings.stale_s
        self._defaults = defaults
        self._brokers = CellBrokers()
        self._shares: dict[str, Share] = {}
        self._arriving: dict[str, int] = {}  # tenants that move to this broker's cell, and answers that are awaited
        self._bounded: dict[str, TenantBound] = {}
        self._answered_s = now()
        self._trail = trail
        self._announced = AnnouncedTenants()
        self._are_off = False  # the controller says that an even part of each quota holds
        self._even_over: Mapping[int, BrokerImage] | None = None
        """The brokers of the image by which even parts were set, None if they do not hold."""
        self.is_stale = False

    # the controller's answers ------------------------------------------------------------------------------

    def held(self) -> Iterator[str]:
        """The tenants with shares, and those that move here: they have to be reported although they use nothing."""
        return iter(self._shares | self._arriving)

    def of(self, tenant: str) -> Share:
        """What the controller gave, for the next report."""
        return NO_SHARE if self.is_stale else self._shares.get(tenant, NO_SHARE)

    def take(self, tenants: Iterable[str], answer: ReportUsageResponse) -> None:
        """The response to a piece of a report, which named these tenants."""
        self._are_off = answer.even
        given = {} if answer.keep else {row.tenant: row for row in answer.shares}
        for tenant in tenants:
            if not tenant:
                continue
            if not answer.keep:
                row = given.get(tenant)
                share = NO_SHARE
                if row is not None:
                    share = Share(row.ingress, row.egress, row.busy, row.connections_elsewhere)
                if share == NO_SHARE:
                    self._shares.pop(tenant, None)
                else:
                    self._shares[tenant] = share
                self._answer_arrival(tenant, is_split=row is not None and row.is_split)
            self._bound(tenant)
            self._announce(tenant)

    def answered(self, sent_s: float, unanswered: Iterable[str] = ()) -> Work[None]:
        """All of a round that was sent at `sent_s` has been answered; call it also when it was not, with -1 and the
        tenants that it named."""
        now = self._now()
        self._answered_s = max(self._answered_s, sent_s)
        was_stale, self.is_stale = self.is_stale, now - self._answered_s >= self._stale_s
        if self.is_stale and not was_stale:
            for tenant in self._shares:
                self._announced.ends(tenant, now)
            self._shares.clear()
        for tenant, seconds in self._announced.ended(now):
            inform(self._trail, Act(AuditKind.SHARES_ENDED, before={"tenant": tenant, "seconds": round(seconds)}))
        even_over = self._image().brokers if self.holds_even else None
        if even_over is not self._even_over:
            self._even_over = even_over
            yield from self._bound_all(list(self._bounded))
        yield from self._bound_all([tenant for tenant in unanswered if tenant])

    def _answer_arrival(self, tenant: str, *, is_split: bool) -> None:
        """A controller that splits its quota cannot give a new broker a share at once: it takes it from others."""
        left = self._arriving.pop(tenant, 0) - (not is_split)
        if left > 0 and tenant not in self._shares:
            self._arriving[tenant] = left

    @property
    def holds_even(self) -> bool:
        """Whether an even part of each quota holds, whatever the shares are."""
        return self.is_stale or self._are_off

    def _announce(self, tenant: str) -> None:
        """Write an event if the tenant begins to be held to shares, or mark that it no longer is."""
        now, share = self._now(), NO_SHARE if self.holds_even else self.of(tenant)
        given = [resource for resource in RESOURCES if share[resource] >= 0]
        known = self._image().tenants.get(tenant)
        if known is None or not given:
            self._announced.ends(tenant, now)
        elif self._announced.begins(tenant, now):
            quotas = quotas_of(known, self._defaults)
            parts = {one.name.lower(): [share[one], quotas[one]] for one in given}
            cause = f"near its quota of {', '.join(parts)}"
            after = {"tenant": tenant, "name": known.name} | parts
            inform(self._trail, Act(AuditKind.SHARES_BEGAN, cause=cause, after=after))

    # bounds ------------------------------------------------------------------------------------------------

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for tenant in delta.access.tenants.changed:
            known = image.tenants.get(tenant)
            if known is None:
                self._shares.pop(tenant, None)
                self._arriving.pop(tenant, None)
                self._announced.forget(tenant)
            elif tenant not in self._shares and self._begins_to_come(known, delta.base, image):
                self._arriving[tenant] = ARRIVAL_ANSWERS
            if tenant in self._bounded or tenant in self._shares or tenant in self._arriving:
                self._bound(tenant)

    def _begins_to_come(self, tenant: TenantImage, before: MetadataImage, image: MetadataImage) -> bool:
        """A move changes the tenant several times, and its clients are to wait for an even part once alone."""
        was = before.tenants.get(tenant.id)
        return self._comes_here(tenant, image) and (was is None or not self._comes_here(was, before))

    def _comes_here(self, tenant: TenantImage, image: MetadataImage) -> bool:
        own = image.brokers.get(self._broker_id)
        return own is not None and tenant.target_cell == cell_of(own) != tenant.cell

    def bound_of(self, tenant: str) -> TenantBound:
        """What the tenant may use of this broker by its quotas alone."""
        known = self._image().tenants.get(tenant)
        return NO_BOUND if known is None else self._bound_for(known)

    def allocated(self, tenant: str, resource: Resource) -> int | None:
        """What is meant for this broker of the tenant's quota: its share, or an even part while it has none. None
        without a quota. Unlike a bound, the parts of all brokers add up to the quota."""
        known = self._image().tenants.get(tenant)
        quota = 0 if known is None else quotas_of(known, self._defaults)[resource]
        if known is None or quota <= 0:
            return None
        own = -1 if self.holds_even else self.of(tenant)[resource]
        if own >= 0:
            return min(own, quota)
        return even_share(quota, len(self._brokers.of(known, self._image().brokers)))

    def reserved(self, tenant: str) -> tuple[int, int]:
        """Bytes per second that the tenant may always send and be sent: wherever its load is, it may be one broker."""
        known = self._image().tenants.get(tenant)
        if known is None:
            return 0, 0
        limits, defaults = known.limits, self._defaults
        return limit_of(limits, INGRESS_RESERVED, defaults), limit_of(limits, EGRESS_RESERVED, defaults)

    def connections_here(self, tenant: TenantImage, most: int) -> int:
        """How many of the `most` connections of the tenant this broker may have. It may be twice an even part, because
        clients are rarely spread evenly, but never more than other brokers leave."""
        elsewhere = self.of(tenant.id).connections_elsewhere
        return max(min(self._twice_even(tenant, most), most - max(elsewhere, 0)), 0)

    def connection_rate_here(self, tenant: TenantImage, rate: int) -> int:
        """How many of the `rate` new connections per second may come to this broker; 0 is unlimited."""
        return min(self._twice_even(tenant, rate), rate)

    def _twice_even(self, tenant: TenantImage, number: int) -> int:
        count = max(len(self._brokers.of(tenant, self._image().brokers)), 1)
        return -(-2 * number // count)

    def _bound_all(self, tenants: list[str]) -> Work[None]:
        for number, tenant in enumerate(tenants, 1):
            self._bound(tenant)
            if number % SET_AT_ONCE == 0:
                yield SET_AT_ONCE * SET_COST

    def _bound(self, tenant: str) -> None:
        bound = self.bound_of(tenant)
        if bound == self._bounded.get(tenant, NO_BOUND):
            return
        if bound == NO_BOUND:
            del self._bounded[tenant]
        else:
            self._bounded[tenant] = bound
        self._bounds.bound_tenant(tenant, SHARE, bound)

    def _bound_for(self, tenant: TenantImage) -> TenantBound:
        share, quotas = self.of(tenant.id), quotas_of(tenant, self._defaults)
        holds_even = self.holds_even or tenant.id in self._arriving
        count = len(self._brokers.of(tenant, self._image().brokers)) if holds_even else 0
        found: list[float | None] = []
        for resource in RESOURCES:
            quota, own = quotas[resource], share[resource]
            if quota <= 0:
                found.append(None)
            elif holds_even:
                found.append(float(even_share(quota, count)))
            else:
                found.append(float(min(own, quota) if own >= 0 else quota))
        busy = found[Resource.BUSY]
        saves = tenant.id not in self._arriving or not any(quotas)
        return TenantBound(found[Resource.INGRESS], found[Resource.EGRESS], None if busy is None else busy / NS, saves)
