"""How much of what a broker leads the tier does not hold yet, known without a walk over all of it."""

from __future__ import annotations

from broker.tier.led import LedPartition


class CopyLag:
    """`bytes`: of closed segments that wait to be copied, of each led partition when the tier looked at it last."""

    def __init__(self) -> None:
        self.bytes = 0
        self._noted: dict[LedPartition, int] = {}  # those that have some

    def note(self, led: LedPartition) -> None:
        """Each roll, copy and new setting has the tier look at a partition."""
        self.forget(led)
        lag = led.uncopied_bytes
        if lag:
            self._noted[led] = lag
            self.bytes += lag

    def forget(self, led: LedPartition) -> None:
        self.bytes -= self._noted.pop(led, 0)
