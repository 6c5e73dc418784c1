"""Which client goes when there are too many: against the rule in a few words, and in few steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.telemetry.forgetting import ForgettingOrder, Key
from tests.common.call_count import counted_calls

CLIENTS_MAX = 6
KEYS = st.tuples(st.sampled_from("abcd"), st.sampled_from([bytes([number]) for number in range(9)]))
STEPS = st.lists(st.tuples(KEYS, st.sampled_from(["heard", "with series", "forgotten"])), max_size=60)


@given(STEPS)
def test_it_is_of_the_tenant_with_most_clients_without_series_first_and_heard_of_longest_ago(
    steps: list[tuple[Key, str]],
) -> None:
    order, known = ForgettingOrder(), dict[Key, bool]()  # in the order in which they were heard of
    for key, what in steps:
        if what == "forgotten":
            if known.pop(key, None) is not None:
                order.forget(key)
            continue
        known.pop(key, None)
        known[key] = what == "with series"
        order.heard(key, has_series=known[key])
        if len(known) > CLIENTS_MAX:
            gone = order.next_but(key)
            counts = Counter(tenant for tenant, _ in known)
            most = max(counts.values())
            assert gone != key and counts[gone[0]] == most
            assert gone[0] == key[0] or counts[key[0]] < most, "who is at equal share takes no other's place"
            others = [other for other in known if other != key and other[0] == gone[0]]
            without = [other for other in others if not known[other]]
            assert gone == (without or others)[0]
            del known[gone]
            order.forget(gone)


def test_a_tenant_with_one_client_makes_room_for_another_tenants_first() -> None:
    """When there are more tenants than places."""
    order = ForgettingOrder()
    first, second = ("a", b"1"), ("b", b"1")
    order.heard(first, has_series=True)
    order.heard(second, has_series=False)
    assert order.next_but(second) == first
    assert order.next_but(first) == second


@pytest.mark.parametrize("tenants", [1, 3_000])
def test_it_takes_as_long_with_many_as_with_few(tenants: int) -> None:
    def key(number: int) -> Key:
        return f"t{number % tenants}", number.to_bytes(16, "big")

    order, count = ForgettingOrder(), 6_000
    for number in range(count):
        order.heard(key(number), has_series=number % 2 == 0)
    for number in range(count, count + 100):
        with counted_calls() as calls:
            order.heard(key(number), has_series=False)
            order.forget(order.next_but(key(number)))
        assert calls.calls < 60
