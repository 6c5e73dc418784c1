"""What the balancer of the active controller waits for: soft state, shown to operators."""

from __future__ import annotations


class BalanceStatus:
    """Forgotten with the leadership."""

    def __init__(self) -> None:
        self._waits: dict[int, str] = {}

    def restart(self) -> None:
        self._waits.clear()

    def waits_for(self, operation: int, reason: str) -> None:
        """Why the operation begins nothing now; "" if it does not wait."""
        if reason:
            self._waits[operation] = reason
        else:
            self._waits.pop(operation, None)

    def reason(self, operation: int) -> str | None:
        return self._waits.get(operation)
