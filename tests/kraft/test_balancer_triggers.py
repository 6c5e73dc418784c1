"""When the balancer begins a plan by itself."""

from __future__ import annotations

from common.pacing import at_once
from kraft.balancer.triggers import EMPTY_BROKER, Looks, broken_now
from tests.kraft.balancer_models import MB, broker, layout, partition


def test_a_broker_far_above_the_mean_is_a_reason_after_three_looks_in_succession() -> None:
    brokers = [broker(number) for number in range(4)]
    hot = layout(brokers, [partition(n, [n], rate * MB) for n, rate in enumerate((13, 9, 9, 9))])
    calm = layout(brokers, [partition(n, [n], rate * MB) for n, rate in enumerate((11.5, 9.5, 9.5, 9.5))])
    reasons = ("network-in", 0), ("network-out", 0)
    looks = Looks()
    found = [looks.take(*at_once(broken_now(one))) for one in (hot, hot, calm, hot, hot, hot, hot)]
    assert found[:5] == [[], [], [], [], []]
    assert set(found[5]) == set(found[6]) == {*reasons}


def test_a_broken_hard_goal_and_an_empty_broker_are_reasons_at_once() -> None:
    brokers = [broker(0, "a"), broker(1, "a"), broker(2, "b")]
    found = layout(brokers, [partition(number, [0, 1]) for number in range(4)])
    assert set(Looks().take(*at_once(broken_now(found)))) >= {("racks", 1), (EMPTY_BROKER, 2)}


def test_too_little_traffic_is_no_reason() -> None:
    brokers = [broker(number) for number in range(2)]
    found = layout(brokers, [partition(0, [0], 0.5 * MB), partition(1, [1])])
    assert at_once(broken_now(found)) == ([], [])
