"""Splits tenants' quotas over their brokers: soft state of the active controller, which is every tenant's coordinator.

A broker reports what its tenants use, with the shares that it acts on, and the response has its new shares: there is no
other channel. Only tenants near a quota have state here, so the cost is that of the rows that a report names.

A controller that has just become active has brokers keep their shares until all live ones have reported, or for a
time; what brokers hold that it has not heard of is not given away before it is stale.
"""

from __future__ import annotations

import logging

from common.node_settings.shares import ShareMode, ShareSettings
from common.pacing import Work
from common.settings import declared, overridden
from kraft.controller.policy import ControllerPolicy, tenant_limit
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.unfair_time import UnfairTime
from kraft.controller.usage_rates import Rates, TenantUse
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import CONNECTIONS_MAX, TenantImage
from kraft.quotas.announced_tenants import AnnouncedTenants
from kraft.quotas.shares import PER_MILLE, Demand, even_share
from kraft.quotas.split_quota import SplitQuota, SplitRules
from kraft.quotas.tenant_quotas import RESOURCES, CellBrokers, Quotas, Resource, quotas_of
from wire.messages import ReportUsageRequest, ReportUsageResponse

logger = logging.getLogger(__name__)

ROWS_AT_ONCE, ROW_COST = 10, 20  # in one slice, and units of `common.pacing` of each
SHARE, PRESSURE = "share", "pressure"
"""Reasons of throttled time that the shares and pressure account for, see `broker.quotas.tenant_bounds`."""

SWITCH = declared(ShareSettings, "mode").name
_Row = ReportUsageRequest.TenantUsageReport
_Shares = ReportUsageResponse.TenantShares
Splits = dict[Resource, SplitQuota]


def coordinator_of(tenant_id: str, image: MetadataImage) -> int:
    """The node that splits this tenant's quotas: the active controller. Several could share the tenants by their ids'
    hashes."""
    return image.leader_id


class QuotaCoordinator:
    """Times are seconds of one monotonic clock."""

    def __init__(self, usage: ReportedUsage, policy: ControllerPolicy, settings: ShareSettings) -> None:
        self._usage = usage
        self._policy = policy
        self._settings = settings
        self._rules = SplitRules(settings.lazy_per_mille, settings.share_interval_s, settings.stale_s)
        self._keep_s = settings.keep_s
        self._brokers = CellBrokers()
        self.splits: dict[str, Splits] = {}
        """Of the tenants that are near a quota, or whose brokers still hold shares."""
        self.unfair = UnfairTime()
        self.mode = ShareMode(settings.mode)
        """As of the last report."""
        self._announced = AnnouncedTenants()
        self._heard: set[int] = set()
        self._all_heard = False
        self.since_s = 0.0

    def restart(self, now: float) -> None:
        """This controller becomes active, or is so no longer."""
        self.since_s = now
        self.splits.clear()
        self.unfair.clear()
        self._announced.clear()
        self._heard.clear()
        self._all_heard = False

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Forget tenants that are gone."""
        for tenant in delta.access.tenants.changed:
            if tenant not in image.tenants:
                self.splits.pop(tenant, None)
                self.unfair.forget(tenant)
                self._announced.forget(tenant)

    def is_keeping(self, image: MetadataImage, now: float) -> bool:
        """Whether brokers keep their shares, because this controller does not know enough yet."""
        if now - self.since_s >= self._keep_s:
            return False
        return any(broker.broker_id not in self._heard for broker in image.unfenced_brokers())

    def live(self, image: MetadataImage, tenant: TenantImage) -> tuple[int, ...]:
        """The live brokers that serve the tenant."""
        return self._brokers.of(tenant, image.brokers)

    def mode_under(self, image: MetadataImage) -> ShareMode:
        return ShareMode(overridden(self._settings, image.configs.cluster()).mode)

    def kept(self, image: MetadataImage) -> ReportUsageResponse:
        """The response to a report that was taken in before."""
        is_even = self.mode_under(image) is not ShareMode.DYNAMIC
        return ReportUsageResponse(error_code=0, keep=True, even=is_even, shares=[])

    def answer(self, image: MetadataImage, request: ReportUsageRequest, now: float) -> Work[ReportUsageResponse]:
        """The response to a report that was taken in: the shares of the tenants that it names."""
        self._heed_mode(self.mode_under(image))
        broker = request.broker_id
        if request.is_last:
            self._heard.add(broker)
        self._all_heard = self._all_heard or all(known in self._heard for known in image.brokers)
        keeps = self.is_keeping(image, now)
        found: list[_Shares] = []
        for number, row in enumerate(request.tenants, 1):
            tenant = image.tenants.get(row.tenant)
            if tenant is not None:
                shares = self._row(image, tenant, request, row, keeps, now)
                if shares is not None:
                    found.append(shares)
                self._account(image, tenant, broker, request.interval_ms, now)
            if number % ROWS_AT_ONCE == 0:
                yield ROWS_AT_ONCE * ROW_COST
        for ended, seconds in self._announced.ended(now):
            self._announce_end(image, ended, seconds)
        is_even = self.mode is not ShareMode.DYNAMIC
        return ReportUsageResponse(error_code=0, keep=keeps, even=is_even, shares=[] if keeps else found)

    # one tenant --------------------------------------------------------------------------------------------

    def _row(
        self, image: MetadataImage, tenant: TenantImage, request: ReportUsageRequest, row: _Row, keeps: bool, now: float
    ) -> _Shares | None:
        broker, round_number = request.broker_id, request.round
        quotas = quotas_of(tenant, self._policy.access)
        held = (row.ingress_share, row.egress_share, row.busy_share)
        splits = self.splits.get(tenant.id)
        is_off = self.mode is ShareMode.STATIC
        near = splits is not None or max(held) >= 0
        near = near or (not is_off and self._may_be_near(image, tenant, broker, quotas, now))
        elsewhere = -1 if keeps else self._connections_elsewhere(image, tenant, broker, now)
        if not near:
            return None if elsewhere < 0 else _Shares(tenant=tenant.id, connections_elsewhere=elsewhere)
        if splits is None:
            splits = self.splits[tenant.id] = self._new_splits(now)
        found = [-1, -1, -1]
        live = self._brokers.of(tenant, image.brokers)
        for resource in RESOURCES:
            split, quota = splits[resource], quotas[resource]
            confirmed = held[resource] if held[resource] >= 0 else None
            split.confirmed(broker, confirmed, now, quota, len(live), round_number)
            if keeps:
                continue
            if quota <= 0 or is_off:
                split.end(now)
                continue
            self._take_back(tenant, split)
            if split.is_due(quota, now, broker, live):
                split.compute(quota, self.demands(image, tenant, resource, now, broker), now, self._all_heard)
            share = split.next_share(broker, now, live, self._all_heard, round_number)
            found[resource] = -1 if share is None else share
        self._announce(image, tenant, quotas, splits, now)
        if all(split.is_idle for split in splits.values()):
            del self.splits[tenant.id]
        is_split = not keeps and any(split.is_bound for split in splits.values())
        if max(*found, elsewhere) < 0 and not is_split:
            return None
        return _Shares(
            tenant=tenant.id,
            ingress=found[Resource.INGRESS],
            egress=found[Resource.EGRESS],
            busy=found[Resource.BUSY],
            connections_elsewhere=elsewhere,
            is_split=is_split,
        )

    # what is logged ------------------------------------------------------------------------------------------

    def _heed_mode(self, mode: ShareMode) -> None:
        if mode is self.mode:
            return
        before, self.mode = self.mode, mode
        logger.warning(
            "the split of tenants' quotas over brokers changes", extra={SWITCH: mode.value, "was": before.value}
        )

    def _announce(self, image: MetadataImage, tenant: TenantImage, quotas: Quotas, splits: Splits, now: float) -> None:
        """Log that brokers begin to have shares of the tenant's quotas."""
        bound = [resource for resource in RESOURCES if splits[resource].is_bound]
        if not bound:
            self._announced.ends(tenant.id, now)
        elif self._announced.begins(tenant.id, now):
            used = self.used(image, tenant, now)
            logger.info(
                "a tenant is near its quota, so each broker %s a share of it",
                "has" if self.mode is ShareMode.DYNAMIC else "would have",
                extra={"tenant": tenant.name, "id": tenant.id}
                | {one.name.lower(): f"{used[one]} of {quotas[one]} per second" for one in bound},
            )

    def _announce_end(self, image: MetadataImage, tenant_id: str, seconds: float) -> None:
        tenant = image.tenants.get(tenant_id)
        if tenant is not None:
            extra = {"tenant": tenant.name, "id": tenant.id, "seconds": round(seconds)}
            logger.info("a tenant is far below its quotas again and has no shares of them", extra=extra)

    # one tenant's use ---------------------------------------------------------------------------------------

    def _take_back(self, tenant: TenantImage, split: SplitQuota) -> None:
        """What is held by brokers whose last round did not name the tenant: each names all tenants with shares."""
        for broker in list(split.held):
            use = self._usage.heard(broker)
            one = None if use is None else use.tenants.get(tenant.id)
            if use is not None and (one is None or one.round < use.round):
                split.not_named(broker, use.round)

    def _new_splits(self, now: float) -> Splits:
        until_s = self.since_s + self._rules.stale_s
        unheard_until_s = None if self._all_heard or now >= until_s else until_s
        return {resource: SplitQuota(self._rules, unheard_until_s) for resource in RESOURCES}

    def _may_be_near(self, image: MetadataImage, tenant: TenantImage, broker: int, quotas: Quotas, now: float) -> bool:
        """Whether the tenant may use so much that it needs shares. If it does, it uses at least an even part of that at
        one of its brokers: this is found when that broker reports."""
        if not any(quotas):
            return False
        use = self._usage.of_broker(broker, now)
        one = None if use is None else use.tenants.get(tenant.id)
        rates = None if use is None or one is None else use.rates_of(one)
        if rates is None:
            return False
        count = max(len(self._brokers.of(tenant, image.brokers)), 1)
        lazy = self._rules.lazy_per_mille
        return any(
            quotas[resource] and rate_of(rates, resource) * PER_MILLE * count >= lazy * quotas[resource]
            for resource in RESOURCES
        )

    def demands(
        self, image: MetadataImage, tenant: TenantImage, resource: Resource, now: float, reporter: int = -1
    ) -> dict[int, Demand]:
        """What the tenant uses of each of its brokers, and of others where it uses something, such as those of the cell
        that it has left: `reporter`, and those that hold shares. A silent broker counts for what it may use."""
        own = dict.fromkeys(self._brokers.of(tenant, image.brokers))
        split = self.splits[tenant.id][resource] if tenant.id in self.splits else None
        found = {broker: self._demand(tenant, broker, resource, split, now) for broker in own}
        for broker in (reporter, *(split.held if split is not None else ())):
            if broker not in found and broker in image.brokers:
                demand = self._demand(tenant, broker, resource, split, now)
                if demand.rate > 0:
                    found[broker] = demand
        return found

    def _demand(
        self, tenant: TenantImage, broker: int, resource: Resource, split: SplitQuota | None, now: float
    ) -> Demand:
        held = None if split is None else split.held.get(broker)
        use = self._usage.of_broker(broker, now)
        if use is None:
            return Demand(0 if held is None else held.share, is_known=False)
        one = use.tenants.get(tenant.id)
        if one is None:
            return Demand(0)
        rates = use.rates_of(one)
        if rates is None:
            return Demand(0 if held is None else held.share, is_known=False)
        rate = rate_of(rates, resource)
        waited = one.round >= use.round and _waited_ms(one) > 0
        return Demand(rate) if split is None else split.demand(broker, rate, waited)

    def used(self, image: MetadataImage, tenant: TenantImage, now: float) -> Quotas:
        """What the tenant uses of all its brokers, by resource."""
        found = [0, 0, 0]
        for broker in self._brokers.of(tenant, image.brokers):
            use = self._usage.of_broker(broker, now)
            one = None if use is None else use.tenants.get(tenant.id)
            rates = None if use is None or one is None else use.rates_of(one)
            if rates is not None:
                for resource in RESOURCES:
                    found[resource] += rate_of(rates, resource)
        return found[0], found[1], found[2]

    def _connections_elsewhere(self, image: MetadataImage, tenant: TenantImage, broker: int, now: float) -> int:
        """-1 when the tenant has at most half of the connections that it may have. A broker that reports more than all
        of them counts for an even part, so that it leaves others theirs."""
        most = tenant_limit(tenant, CONNECTIONS_MAX, self._policy)
        here = elsewhere = 0
        own = self._brokers.of(tenant, image.brokers)
        for other in dict.fromkeys((*own, broker)):
            use = self._usage.of_broker(other, now)
            one = None if use is None else use.tenants.get(tenant.id)
            if one is not None and other == broker:
                here = one.connections
            elif one is not None:
                elsewhere += one.connections if one.connections <= most else even_share(most, len(own))
        return min(elsewhere, (1 << 31) - 1) if elsewhere and 2 * (here + elsewhere) > most else -1

    def _account(self, image: MetadataImage, tenant: TenantImage, broker: int, interval_ms: int, now: float) -> None:
        """Count the time for which the tenant's clients waited, and whether it used less than its quotas meanwhile."""
        use = self._usage.of_broker(broker, now) or self._usage.heard(broker)
        one = None if use is None else use.tenants.get(tenant.id)
        waited_ms = 0 if one is None else min(_waited_ms(one), max(interval_ms, 0))
        if not waited_ms and tenant.id not in self.splits and tenant.id not in self.unfair:
            return
        quotas, used = quotas_of(tenant, self._policy.access), self.used(image, tenant, now)
        is_fair = self.unfair.is_over(tenant.id, quotas, used, now)
        if waited_ms:
            self.unfair.add(tenant.id, waited_ms, 0 if is_fair else waited_ms)


def rate_of(rates: Rates, resource: Resource) -> int:
    if resource is Resource.INGRESS:
        return int(rates.bytes_in)
    return int(rates.bytes_out) if resource is Resource.EGRESS else int(rates.busy * 1e9)


def _waited_ms(use: TenantUse) -> int:
    """Since the report before, for reasons that shares and pressure account for."""
    return sum(ms for reason, ms in use.waited if reason in (SHARE, PRESSURE))
