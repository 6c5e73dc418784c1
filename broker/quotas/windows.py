"""How far the use of one client is ahead of its bound. Pure.

In the first window after a rest, this is Apache Kafka's rate over a window (Rate over SampledStat): a whole window's
worth may be used at once. There the use of a sample leaves the window all at once, so that a burst at the beginning
comes back with every window, and a client gets 10/11 to 11/10 of its bound depending on when one looks. Here use counts
until it is paid for at the bound, as in a leaky bucket (GCRA, ITU-T I.371): after the first window a client that always
has more gets its bound exactly. What it owes when that window is over is forgiven but for a sample's worth.
"""

from __future__ import annotations

import math
from typing import NamedTuple

REST_PART = 0.5
"""A client that has used so much of a window's worth less than its bound allowed begins a new window. Less than that it
may catch up with."""


class WindowForm(NamedTuple):
    """`samples` of `sample_s` seconds each, as in Apache Kafka; the newest one is still being filled."""

    samples: int
    sample_s: float

    @property
    def full_s(self) -> float:
        """Seconds whose worth may be used at once."""
        return max(self.samples - 1, 1) * self.sample_s


class UseWindow:
    """What was used, in seconds of the bound. The caller gives the time, in seconds that never run backwards.

    `began_s`: when the client began after a rest. `paid_s`: when all that it has used is paid for. `may_owe`: whether
    `owed_s` may be above 0 now or later, if nothing more is used.
    """

    __slots__ = ("_full_s", "_is_first", "_rest_s", "_sample_s", "_saves", "began_s", "may_owe", "paid_s")

    def __init__(self, form: WindowForm) -> None:
        self._full_s = form.full_s
        self._rest_s = form.full_s * REST_PART
        self._sample_s = form.sample_s
        self._saves = True
        self.began_s = self.paid_s = -math.inf
        self.may_owe = self._is_first = False

    def use(self, worth_s: float, now: float) -> None:
        """Use what the bound allows in `worth_s` seconds. What is owed is never more than a further window's worth: the
        rest is forgiven, as it leaves the window in Apache Kafka."""
        paid_s = self.paid_s
        if now - paid_s >= self._rest_s:
            paid_s = now
            self.began_s = now if self._saves else now - self._full_s
            self._is_first = self._saves
        elif self._is_first and now >= self.began_s + self._full_s:
            self._is_first = False
            paid_s = min(paid_s, now + self._sample_s)
        paid_s += worth_s
        full_s = self.began_s + self._full_s
        self.may_owe = paid_s > full_s
        if self.may_owe:
            most_s = self._due_s(now) + self._full_s
            paid_s = paid_s if paid_s < most_s else most_s
        self.paid_s = paid_s

    def fill(self, now: float) -> None:
        """Begin as if the bound had been used all the time, so that nothing may be used at once."""
        self.began_s, self.paid_s, self.may_owe, self._is_first = now - self._full_s, now, True, False

    def save(self, saves: bool, now: float) -> None:
        """Say whether a client that uses little may use more later. If not, a rest begins no new window, and what is
        not used is lost; when it may again, it has saved nothing up yet."""
        if saves == self._saves:
            return
        self._saves = saves
        self._rest_s = self._full_s * REST_PART if saves else 0.0
        if self.paid_s <= now:
            self.fill(now)

    def scale(self, part: float, now: float) -> None:
        """Make what was used `part` of it, in seconds of a new bound."""
        origin_s = self.began_s if now < self.began_s + self._full_s else now
        if self.paid_s > origin_s:
            self.paid_s = origin_s + (self.paid_s - origin_s) * part
            self.may_owe = self.paid_s > self.began_s + self._full_s

    def is_at_rest(self, now: float) -> bool:
        return now - self.paid_s >= self._rest_s

    def left_s(self, now: float) -> float:
        """Seconds whose worth may be used at once; below 0 if the client is over its bound."""
        return self._full_s if self._saves and self.is_at_rest(now) else -self.owed_s(now)

    def owed_s(self, now: float) -> float:
        """Seconds without use after which the client is within its bound; not above 0 if it is not over."""
        left_s = self.began_s + self._full_s - now
        owed_s = self.paid_s - self._due_s(now)
        return owed_s if not self._is_first else min(owed_s, max(left_s, 0.0) + self._sample_s)

    def _due_s(self, now: float) -> float:
        """Use up to this time is within the bound. In the first window it is ahead of `now`, by whole samples, as in
        Apache Kafka."""
        left_s = self.began_s + self._full_s - now
        return now + math.ceil(left_s / self._sample_s) * self._sample_s if left_s > 0 else now

    def lacks_s(self, worth_s: float, now: float) -> float:
        """Seconds until so much more may be used; not above 0 if it may be used now. A sample's worth has to be paid
        beforehand, and what is beyond it afterwards: otherwise a large batch could never be read."""
        return self.owed_s(now) + min(worth_s, self._sample_s)
