"""What is announced of tenants' bounds: in pairs, not often, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraft.quotas.announced_tenants import ENDED_MAX, LINES_MAX, LINES_S, QUIET_S, TENANTS_MAX, AnnouncedTenants

LOOKS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([5.0, 30.0, 601.0])), max_size=60)


@given(LOOKS)
def test_begins_and_ends_take_turns_and_a_tenant_that_flaps_is_announced_once(
    looks: list[tuple[str, bool, float]],
) -> None:
    announced, now = AnnouncedTenants(), 0.0
    bounded: dict[str, bool] = {}
    said: dict[str, bool] = {}
    free_since: dict[str, float] = {}
    for tenant, is_bounded, seconds in looks:
        now += seconds
        for ended, _ in announced.ended(now):
            assert said[ended] and now - free_since[ended] >= QUIET_S
            said[ended] = False
        if is_bounded:
            if announced.begins(tenant, now):
                assert not said.get(tenant)
                said[tenant] = True
            free_since.pop(tenant, None)
        else:
            announced.ends(tenant, now)
            free_since.setdefault(tenant, now)
        bounded[tenant] = is_bounded
    announced.ended(now + QUIET_S)
    assert all(announced.begins(tenant, now) is False for tenant, held in bounded.items() if held), "it was announced"


def test_only_so_many_are_announced_in_a_minute_and_the_others_later() -> None:
    announced = AnnouncedTenants()
    tenants = [f"lkc-{number:06}" for number in range(2 * TENANTS_MAX)]
    assert sum(announced.begins(tenant, 5.0) for tenant in tenants) == LINES_MAX
    assert sum(announced.begins(tenant, 5.0 + LINES_S) for tenant in tenants) == LINES_MAX
    for minute in range(2, 100):
        for tenant in tenants:
            announced.begins(tenant, 5.0 + minute * LINES_S)
    assert len(announced) == TENANTS_MAX
    for tenant in tenants:
        announced.ends(tenant, 10_000.0)
    assert announced.ended(10_000.0 + QUIET_S - 1) == []
    assert len(announced.ended(10_000.0 + QUIET_S)) == ENDED_MAX
    announced.clear()
    assert len(announced) == 0 and announced.ended(1e9) == []
