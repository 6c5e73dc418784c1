"""What a leader knows of its followers: how far each has acknowledged the log, when it answered, when it had all of it.

Source: KIP-836. A follower has caught up when it acknowledges the end of the log. If it acknowledges what was the end
when it answered before, it was caught up then: so one that is always a little behind a log that grows is not taken for
one that has fallen behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class FollowerState(NamedTuple):
    """`match_index`: the last acknowledged entry. `answered_s` and `caught_up_s`: seconds since; None for never in this
    leadership."""

    match_index: int
    answered_s: float | None
    caught_up_s: float | None


class FollowerProgress:
    """Times are seconds of one monotonic clock. Each leadership begins without any."""

    def __init__(self) -> None:
        self._answered: dict[int, tuple[float, int]] = {}  # when it answered last, and the end of the log then
        self._caught_up: dict[int, float] = {}

    def begin(self) -> None:
        self._answered, self._caught_up = {}, {}

    def answered(self, peer: int, match_index: int, last_index: int, now: float) -> None:
        """`peer` has acknowledged up to `match_index` of a log that ends with `last_index`."""
        before = self._answered.get(peer)
        if match_index >= last_index:
            self._caught_up[peer] = now
        elif before is not None and match_index >= before[1]:
            self._caught_up[peer] = before[0]
        self._answered[peer] = (now, last_index)

    def states(self, matches: Iterable[tuple[int, int]], now: float) -> dict[int, FollowerState]:
        """By follower; `matches` has each one's id and last acknowledged entry."""
        found = {}
        for peer, match_index in matches:
            answered, caught_up = self._answered.get(peer), self._caught_up.get(peer)
            found[peer] = FollowerState(
                match_index=match_index,
                answered_s=None if answered is None else now - answered[0],
                caught_up_s=None if caught_up is None else now - caught_up,
            )
        return found
