"""Shares that brokers act on never exceed the quota: whatever is lost, whoever is silent, whoever splits it."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kraft.quotas.shares import Demand
from kraft.quotas.split_quota import SplitQuota, SplitRules

RULES = SplitRules(every_s=10.0, stale_s=60.0)
QUOTA = 900_000
BROKERS = range(3)


class Broker:
    """One that keeps its last share for as long as it is fresh, counted from when it sent what was answered."""

    def __init__(self) -> None:
        self.share: int | None = None
        self.answered_s = float("-inf")


class Cluster:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.brokers = {broker: Broker() for broker in BROKERS}
        self.live = set(BROKERS)
        self.rates = dict.fromkeys(BROKERS, 0)
        self.split = SplitQuota(RULES)
        self.heard = set(BROKERS)

    def fail_over(self) -> None:
        self.split = SplitQuota(RULES, self.now + RULES.stale_s)
        self.heard = set()

    def report(self, broker: int, arrives: bool = True) -> None:
        one = self.brokers[broker]
        sent_s = self.now
        fresh = one.share if self.now - one.answered_s < RULES.stale_s else None
        self.heard.add(broker)
        self.split.confirmed(broker, fresh, self.now, QUOTA, len(BROKERS))
        if self.split.is_due(QUOTA, self.now):
            live = {other: Demand(self.rates[other]) for other in sorted(self.live)}
            self.split.compute(QUOTA, live, self.now, self.heard >= set(BROKERS))
        told = self.split.next_share(broker, self.now, self.live, self.heard >= set(BROKERS))
        if arrives:
            one.share, one.answered_s = told, sent_s

    def shares_in_effect(self) -> list[int]:
        now = self.now
        fresh = [one.share for one in self.brokers.values() if now - one.answered_s < RULES.stale_s]
        return [share for share in fresh if share is not None]


def everyone(cluster: Cluster, rounds: int = 4) -> None:
    for _ in range(rounds):
        for broker in sorted(cluster.live):
            cluster.report(broker)
        cluster.now += 5.0


def test_a_tenant_below_the_lazy_ratio_has_no_share_and_near_its_quota_it_has() -> None:
    cluster = Cluster()
    cluster.rates[0] = QUOTA * 7 // 10
    everyone(cluster)
    assert cluster.shares_in_effect() == []
    cluster.rates[0] = QUOTA * 9 // 10
    everyone(cluster)
    assert cluster.split.is_bound and sum(cluster.shares_in_effect()) == QUOTA
    cluster.rates[0] = QUOTA * 6 // 10
    everyone(cluster)
    assert cluster.shares_in_effect() == [] and cluster.split.is_idle


def test_shares_follow_the_load_from_broker_to_broker() -> None:
    cluster = Cluster()
    cluster.rates = {0: 850_000, 1: 0, 2: 0}
    everyone(cluster)
    cluster.rates = {0: 0, 1: 850_000, 2: 0}
    everyone(cluster)
    assert cluster.brokers[1].share is not None and cluster.brokers[1].share > 850_000
    assert sum(cluster.shares_in_effect()) == QUOTA


def test_a_silent_brokers_share_is_given_away_when_it_is_stale() -> None:
    cluster = Cluster()
    cluster.rates = dict.fromkeys(BROKERS, 290_000)
    everyone(cluster)
    cluster.live = {0, 1}
    cluster.rates = {0: 430_000, 1: 430_000, 2: 0}
    while cluster.now < cluster.brokers[2].answered_s + RULES.stale_s - 5.0:
        everyone(cluster, 1)
        assert sum(cluster.shares_in_effect()) <= QUOTA
        assert cluster.brokers[0].share is not None and cluster.brokers[0].share <= QUOTA // 3
    everyone(cluster, 6)
    assert cluster.brokers[0].share == QUOTA // 2


def test_a_new_controller_gives_nothing_of_what_a_broker_that_it_has_not_heard_holds() -> None:
    cluster = Cluster()
    cluster.rates = dict.fromkeys(BROKERS, 290_000)
    everyone(cluster)
    cluster.fail_over()
    cluster.rates = {0: 860_000, 1: 0, 2: 0}
    for _ in range(8):
        for broker in (0, 1):
            cluster.report(broker)
            assert sum(cluster.shares_in_effect()) <= QUOTA
        cluster.now += 5.0
    cluster.report(2)
    for _ in range(3):
        everyone(cluster)
    assert cluster.brokers[0].share is not None and cluster.brokers[0].share > 800_000


def test_a_new_controller_gives_nothing_of_what_a_fenced_broker_holds() -> None:
    """All live brokers have reported, but the fenced one may act on its share for as long as any other."""
    cluster = Cluster()
    cluster.rates[0] = QUOTA * 8 // 10
    everyone(cluster, 1)
    cluster.fail_over()
    cluster.live.discard(1)
    everyone(cluster, 1)
    assert cluster.split.targets[2] > (cluster.brokers[2].share or 0) > 0
    assert sum(cluster.shares_in_effect()) <= QUOTA
    everyone(cluster, 14)
    assert sum(cluster.shares_in_effect()) == QUOTA and cluster.brokers[2].share == cluster.split.targets[2]


class Faults(RuleBasedStateMachine):
    """Reports and answers that are lost, brokers that come and go, controllers that change, load that wanders."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()

    @rule(broker=st.sampled_from(BROKERS), arrives=st.booleans())
    def report(self, broker: int, arrives: bool) -> None:
        if broker in self.cluster.live:
            self.cluster.report(broker, arrives)

    @rule()
    def all_report(self) -> None:
        everyone(self.cluster, 1)

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(broker=st.sampled_from(BROKERS), rate=st.integers(0, 2 * QUOTA))
    def load(self, broker: int, rate: int) -> None:
        self.cluster.rates[broker] = rate

    @precondition(lambda self: len(self.cluster.live) == len(BROKERS))
    @rule(broker=st.sampled_from(BROKERS))
    def fence(self, broker: int) -> None:
        self.cluster.live.discard(broker)

    @precondition(lambda self: len(self.cluster.live) < len(BROKERS))
    @rule(restarts=st.booleans())
    def come_back(self, restarts: bool) -> None:
        for broker in set(BROKERS) - self.cluster.live:
            self.cluster.live.add(broker)
            if restarts:
                self.cluster.brokers[broker] = Broker()

    @rule()
    def fail_over(self) -> None:
        self.cluster.fail_over()

    @invariant()
    def no_share_is_given_twice(self) -> None:
        assert sum(self.cluster.shares_in_effect()) <= QUOTA

    def teardown(self) -> None:
        """Once all is well again, the shares are where the load is, and all of the quota is given."""
        cluster = self.cluster
        cluster.live = set(BROKERS)
        cluster.rates = dict.fromkeys(BROKERS, QUOTA // 3)
        cluster.now += 61.0
        for _ in range(5):
            everyone(cluster)
        assert sorted(cluster.shares_in_effect()) == [QUOTA // 3] * 3


TestFaults: Any = Faults.TestCase
TestFaults.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_broker_that_names_a_tenant_no_more_holds_nothing_of_its_quota() -> None:
    """Otherwise other brokers would have no share for as long as it may be silent, and would hold nothing back."""
    split = SplitQuota(SplitRules())
    split.compute(QUOTA, {0: Demand(QUOTA), 1: Demand(0)}, 0.0, all_heard=True)
    given = split.next_share(0, 0.0, (0, 1), all_heard=True, round_number=7)
    split.not_named(0, 7)
    assert split.held[0].share == given
    split.not_named(0, 8)
    assert 0 not in split.held
    split.compute(QUOTA, {0: Demand(0), 1: Demand(QUOTA)}, 10.0, all_heard=True)
    assert split.next_share(1, 10.0, (0, 1), all_heard=True) == split.targets[1]


def test_a_guess_about_a_broker_is_mended_when_it_reports() -> None:
    split = SplitQuota(SplitRules())
    split.compute(QUOTA, {0: Demand(QUOTA), 1: Demand(0, is_known=False)}, 0.0, all_heard=True)
    assert not split.is_due(QUOTA, 5.0, 0) and split.is_due(QUOTA, 5.0, 1)
    split.compute(QUOTA, {0: Demand(QUOTA), 1: Demand(QUOTA)}, 5.0, all_heard=True)
    assert not split.is_due(QUOTA, 10.0, 1)
