"""Metrics of tenants' use at the active controller, over all brokers: the tenants that use most, and the rest in one.

A scrape sums what brokers have reported in stretches, because tenants are many. The families of a page share the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from common.largest import Largest
from common.metrics import Metrics, Samples
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_metrics import DIRECTIONS, OTHERS, TENANTS_MAX
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.usage_rates import OPERATORS
from kraft.image.metadata import MetadataImage
from kraft.quotas.tenant_quotas import quotas_of

AT_ONCE = 500  # rows of brokers' reports
SHARED_S = 2.0  # how long the families of a page use the same sums
Use = tuple[float, float, float]
"""Bytes a second in and out, and event loops."""


class TenantMetrics:
    """Reads what brokers have reported. `now_s` is the clock of the reports."""

    def __init__(
        self,
        usage: ReportedUsage,
        image: Callable[[], MetadataImage],
        policy: Callable[[], ControllerPolicy],
        now_s: Callable[[], float],
        named_max: int = TENANTS_MAX,
    ) -> None:
        self._usage = usage
        self._image = image
        self._policy = policy
        self._now_s = now_s
        self._named_max = named_max
        self._summed: list[tuple[str, Use]] = []
        self._rest: Use | None = None
        self._summed_s = float("-inf")

    def register(self, metrics: Metrics) -> None:
        metrics.family("tidelog_tenant_bytes_per_second", self._bytes)
        metrics.family("tidelog_tenant_busy_ratio", self._busy)
        metrics.family("tidelog_tenant_quota_bytes_per_second", self._quotas)

    def _bytes(self) -> Samples:
        yield from self._sum()
        for tenant, use in self._shown():
            for number, (_, direction) in enumerate(DIRECTIONS):
                yield {"tenant": tenant, "direction": direction}, use[number]

    def _busy(self) -> Samples:
        yield from self._sum()
        for tenant, use in self._shown():
            yield {"tenant": tenant}, use[2]

    def _quotas(self) -> Samples:
        yield from self._sum()
        tenants, policy = self._image().tenants, self._policy()
        for tenant_id, _ in self._summed:
            tenant = tenants.get(tenant_id)
            if tenant is None:
                continue
            quotas = quotas_of(tenant, policy.access)
            for resource, direction in DIRECTIONS:
                if quotas[resource] > 0:
                    yield {"tenant": tenant_id, "direction": direction}, float(quotas[resource])

    def _shown(self) -> Iterator[tuple[str, Use]]:
        yield from self._summed
        if self._rest is not None:
            yield OTHERS, self._rest

    def _sum(self) -> Iterator[None]:
        """Sum over brokers, unless another family of this page has."""
        now = self._now_s()
        if now - self._summed_s < SHARED_S:
            return
        found: dict[str, Use] = {}
        for broker in self._image().unfenced_brokers():
            use = self._usage.of_broker(broker.broker_id, now)
            rows = [] if use is None else list(use.tenants.items())
            for number, (tenant, row) in enumerate(rows, 1):
                rates = None if use is None else use.rates_of(row)
                if rates is not None and tenant != OPERATORS and max(rates) > 0:
                    before = found.get(tenant, (0.0, 0.0, 0.0))
                    found[tenant] = before[0] + rates.bytes_in, before[1] + rates.bytes_out, before[2] + rates.busy
                if number % AT_ONCE == 0:
                    yield None
        largest: Largest[str] = Largest(self._named_max)
        for number, (tenant, summed) in enumerate(found.items(), 1):
            largest.add(tenant, summed[0] + summed[1])
            if number % AT_ONCE == 0:
                yield None
        shown = [(tenant, found.pop(tenant)) for tenant, _ in largest.kept()]
        rest = (0.0, 0.0, 0.0)
        for number, left in enumerate(found.values(), 1):
            rest = rest[0] + left[0], rest[1] + left[1], rest[2] + left[2]
            if number % AT_ONCE == 0:
                yield None
        self._summed, self._summed_s = shown, now
        self._rest = rest if found else None
