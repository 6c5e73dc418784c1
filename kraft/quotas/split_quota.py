"""One quota of one tenant, split over brokers: the shares that are wanted, and those that brokers may still act on.

A broker reports the share that it holds and gets a new one in the response, which may be lost. So the split keeps the
largest share that each broker may hold, and gives away only what is left of the quota: the shares in effect never
exceed it, whatever is lost, late or doubled. A silent broker keeps its share until it is stale on both sides; from then
on it grants an even share on its own. Times are seconds of one monotonic clock. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from kraft.quotas.shares import Demand, believed_share, demand_of, even_share, granted, is_bound, shares, total


class SplitRules(Struct, frozen=True):
    """`every_s`: how often a split is computed; `stale_s`: how long a broker acts on a share without an answer."""

    lazy_per_mille: int = 800
    every_s: float = 10.0
    stale_s: float = 60.0


class Held(Struct):
    """The largest share that a broker may act on, until `stale_at_s`, as of `round` of its reports."""

    share: int
    stale_at_s: float
    round: int = 0


class SplitQuota:
    """`quota` is per second, like the rates in the demands. It is empty again when no broker holds a share."""

    __slots__ = (
        "_computed_s",
        "_guessed",
        "_rates",
        "_rules",
        "_unheard",
        "_unheard_until_s",
        "held",
        "is_bound",
        "quota",
        "targets",
    )

    def __init__(self, rules: SplitRules, unheard_until_s: float | None = None) -> None:
        """`unheard_until_s`: a controller that has just become active knows only the shares that brokers have reported
        to it since. Until then all that is left of the quota counts as held by those that have not."""
        self._rules = rules
        self._computed_s = float("-inf")
        self._guessed: set[int] = set()  # brokers whose use the split before did not know
        self._rates: dict[int, int] = {}  # by broker, as the split before took them for its demand
        self._unheard: int | None = None
        self._unheard_until_s = unheard_until_s
        self.quota = 0
        self.is_bound = False
        self.targets: dict[int, int] = {}
        self.held: dict[int, Held] = {}

    @property
    def is_idle(self) -> bool:
        return not self.is_bound and not self.held

    def confirmed(
        self, broker: int, share: int | None, now: float, quota: int, brokers: int, round_number: int = 0
    ) -> None:
        """The broker, one of so many, has reported the share of the present quota that it acts on, None for none."""
        if share is None:
            self.held.pop(broker, None)
            return
        held = self.held.get(broker)
        share = believed_share(share, None if held is None else held.share, quota, brokers)
        if self._unheard is not None and broker not in self.held:
            self._unheard -= share
        self.held[broker] = Held(share, now + self._rules.stale_s, round_number)
        if self._unheard_until_s is not None:
            self.is_bound = True

    def not_named(self, broker: int, round_number: int) -> None:
        """A whole round of the broker's reports names no share of it, so it acts on none that it was given before."""
        held = self.held.get(broker)
        if held is not None and held.round < round_number:
            del self.held[broker]

    def is_due(self, quota: int, now: float, broker: int = -1, live: Collection[int] = ()) -> bool:
        """Whether the split should be computed: it is old, of another quota, a guess about this broker, or without it
        although it is one of those that serve the tenant now."""
        if quota != self.quota or broker in self._guessed:
            return True
        if self.is_bound and broker in live and broker not in self.targets:
            return True
        return now - self._computed_s >= self._rules.every_s or now < self._computed_s

    def compute(self, quota: int, demands: Mapping[int, Demand], now: float, all_heard: bool) -> None:
        """Split the quota by these demands. What brokers may hold that have not been heard counts as used."""
        self.quota, self._computed_s = quota, now
        self._rates = {broker: min(one.rate, quota) for broker, one in demands.items()}
        self._guessed = {broker for broker, one in demands.items() if not one.is_known}
        used = total(quota, demands.values()) + self._left_to_unheard(now, all_heard)
        self.is_bound = is_bound(quota, used, self._rules.lazy_per_mille, self.is_bound)
        self.targets = shares(quota, demands) if self.is_bound and demands else {}

    def demand(self, broker: int, rate: int, waited: bool) -> Demand:
        """For the next split, by what the broker has reported. `waited`: clients had to, for this quota or another."""
        held = self.held.get(broker)
        if held is None:
            return Demand(rate)
        return demand_of(rate, waited, held.share, self._rates.get(broker, held.share))

    def end(self, now: float) -> None:
        """The quota has no shares any more. What brokers may still act on stays known until it is stale."""
        self.is_bound, self.targets, self.quota = False, {}, 0
        for broker in [broker for broker, held in self.held.items() if now >= held.stale_at_s]:
            del self.held[broker]

    def next_share(
        self, broker: int, now: float, live: Collection[int], all_heard: bool, round_number: int = 0
    ) -> int | None:
        """The share for the response to this broker's report in that round, None for none.

        `live`: the brokers that serve the tenant now. `all_heard`: every registered one, live or
        not, has reported to this controller.
        """
        held = self.held.get(broker)
        holds = None if held is None else held.share
        if not self.is_bound or broker not in self.targets:
            return None
        elsewhere = self._elsewhere(broker, now, live) + self._left_to_unheard(now, all_heard)
        share = granted(self.targets[broker], self.quota, elsewhere, holds)
        if share is not None:
            self.held[broker] = Held(max(share, holds or 0), now + self._rules.stale_s, round_number)
        return share

    def _elsewhere(self, broker: int, now: float, live: Collection[int]) -> int:
        found, gone = 0, list[int]()
        for other, held in self.held.items():
            if other == broker:
                continue
            if now < held.stale_at_s:
                found += held.share
            elif other in live:
                found += even_share(self.quota, len(live))
            else:
                gone.append(other)
        for other in gone:
            del self.held[other]
        return found

    def _left_to_unheard(self, now: float, all_heard: bool) -> int:
        until_s = self._unheard_until_s
        if until_s is None:
            return 0
        if all_heard or now >= until_s:
            self._unheard_until_s = None
            return 0
        if self._unheard is None:
            self._unheard = self.quota - sum(held.share for held in self.held.values())
        return max(self._unheard, 0)
