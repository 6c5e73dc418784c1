"""How long a fence of a moving tenant's keys may last, and when there may be another. No I/O.

Behind the fence no broker serves the keys. It ends when all is handed over; but a leader may be away, or replicas too
few to commit. So a fence is taken back when no report came for some seconds that a partition, or a part of one, was
handed over. What has the keys then is the old range, which serves them. Later attempts wait longer for a report, and
begin after longer pauses: a tenant whose keys cannot be handed over has them most of the time.
"""

from __future__ import annotations

from msgspec import Struct, field

from kraft.image.tenants import TenantImage
from kraft.records import KeysPhase

FENCE_S = 5.0
"""How long the first fence waits for a report; twice as long in each further one."""
FENCE_MAX_S = 60.0
"""Well below the timeouts of producers, 120 s by default."""
PAUSES = 4
"""The keys are served for so many times as long as the fence has just waited."""

FENCED = (KeysPhase.IDS_COPYING, KeysPhase.COPYING)


class Fence(Struct):
    """`since`: the tenant's phase began, or something was last handed over. `patience_s`: of this attempt, or the
    next. `again_at`: the next one does not begin before."""

    since: float = 0.0
    patience_s: float = FENCE_S
    again_at: float = float("-inf")

    def gave_up(self, now_s: float) -> None:
        self.again_at = now_s + PAUSES * self.patience_s
        self.patience_s = min(2 * self.patience_s, FENCE_MAX_S)

    def went_on(self, now_s: float) -> None:
        self.since = now_s


class Fences(Struct):
    """Soft state of each controller, which follows the metadata; one that has just started begins with short attempts
    again. Times are monotonic seconds."""

    _by_tenant: dict[str, Fence] = field(default_factory=dict)

    def applied(self, old: TenantImage | None, tenant: TenantImage, now_s: float) -> None:
        """The tenant has changed."""
        before, phase = None if old is None else old.keys_phase, tenant.keys_phase
        if before is phase:
            return
        if phase is KeysPhase.SETTLED:
            self.forget(tenant.id)
            return
        fence = self._by_tenant.setdefault(tenant.id, Fence())
        fence.went_on(now_s)
        if before in FENCED:
            fence.gave_up(now_s)

    def restart(self, now_s: float) -> None:
        """Another controller has heard what was handed over until now; this one has yet to hear it."""
        for fence in self._by_tenant.values():
            fence.went_on(now_s)

    def reported(self, tenant_id: str, now_s: float) -> None:
        """One more partition is done, or a part of one."""
        if tenant_id in self._by_tenant:
            self._by_tenant[tenant_id].went_on(now_s)

    def is_late(self, tenant: TenantImage, now_s: float) -> bool:
        """Whether nothing was reported for so long that an operator should know what the keys wait for."""
        fence = self._by_tenant.get(tenant.id)
        return fence is not None and now_s - fence.since >= FENCE_S

    def is_overdue(self, tenant: TenantImage, now_s: float) -> bool:
        """Whether the fence is to be taken back."""
        fence = self._by_tenant.get(tenant.id)
        return fence is not None and now_s - fence.since >= fence.patience_s

    def may_begin(self, tenant: TenantImage, now_s: float) -> bool:
        fence = self._by_tenant.get(tenant.id)
        return fence is None or now_s >= fence.again_at

    def forget(self, tenant_id: str) -> None:
        self._by_tenant.pop(tenant_id, None)
