"""Which tenants' bounds a log or an audit tells of: each begin and end once, however often a bound comes and goes.

A tenant that was bounded counts as free when it was not bounded for `QUIET_S`. So a load around the point where shares
begin makes two lines in ten minutes, and not one with each split.
"""

from __future__ import annotations

QUIET_S = 600.0
TENANTS_MAX = 1_000
"""Tenants that are announced at the same time, so that memory is bounded."""
LINES_MAX, LINES_S = 30, 60.0
"""Begins that are announced within so many seconds. A tenant that was left out follows as soon as there is room."""
ENDED_MAX = 10  # announced at once


class AnnouncedTenants:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}  # of those that were announced to be bounded
        self._ending_s: dict[str, float] = {}  # since when they are not, the earliest first
        self._lines, self._lines_from_s = 0, float("-inf")

    def begins(self, tenant: str, now: float) -> bool:
        """The tenant is bounded; whether that is to be announced now."""
        self._ending_s.pop(tenant, None)
        if tenant in self._since_s or len(self._since_s) >= TENANTS_MAX:
            return False
        if not 0 <= now - self._lines_from_s < LINES_S:
            self._lines, self._lines_from_s = 0, now
        if self._lines >= LINES_MAX:
            return False
        self._lines += 1
        self._since_s[tenant] = now
        return True

    def ends(self, tenant: str, now: float) -> None:
        """The tenant is not bounded any more."""
        if tenant in self._since_s:
            self._ending_s.setdefault(tenant, now)

    def ended(self, now: float) -> list[tuple[str, float]]:
        """Tenants whose end is to be announced now, and the seconds for which they were bounded."""
        found = list[tuple[str, float]]()
        for tenant, at_s in self._ending_s.items():
            if now - at_s < QUIET_S or len(found) == ENDED_MAX:
                break
            found.append((tenant, at_s - self._since_s[tenant]))
        for tenant, _ in found:
            self.forget(tenant)
        return found

    def forget(self, tenant: str) -> None:
        """Tell nothing more of it."""
        self._since_s.pop(tenant, None)
        self._ending_s.pop(tenant, None)

    def clear(self) -> None:
        self._since_s.clear()
        self._ending_s.clear()

    def __len__(self) -> int:
        return len(self._since_s)
