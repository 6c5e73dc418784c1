"""Groups of tenants: what their members wrote of topics stays as they wrote it, offsets live by it, and a list of one
tenant's groups looks at nobody else's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.tenant_index import ByTenant
from common.errors import ErrorCode
from common.pacing import at_once
from tests.broker.group_driver import GroupDriver, subscription

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
TENANTS = ("lkc-aaaaaa", "lkc-bbbbbb")
PREFIXES = ("", *(f"{tenant}_" for tenant in TENANTS))
NAMES = st.sampled_from(
    ["t", "u", "lkc-aaaaaa_t", "lkc-bbbbbb_t", "lkc-aaaaaa", "lkc-aaaaaa_", "lkc-", "_", "t_lkc-aaaaaa_"]
)


@given(
    prefix=st.sampled_from(PREFIXES[1:]),
    topics=st.lists(NAMES, max_size=5, unique=True),
    others=st.lists(NAMES, max_size=5, unique=True),
)
def test_offsets_expire_by_the_names_that_members_know(prefix: str, topics: list[str], others: list[str]) -> None:
    """Also where a tenant's topic is named like another tenant's is inside."""
    driver = GroupDriver(QUICK)
    group_id = f"{prefix}flights"
    written = subscription(topics)
    generation, ids = driver.stable_group(1, group=group_id, protocols=(("range", written),))
    committed = dict.fromkeys(f"{prefix}{name}" for name in [*topics, *others])
    driver.topics.update({name: name.encode().ljust(16)[:16] for name in committed})
    if committed:
        codes = driver.commit(dict.fromkeys(((name, 0) for name in committed), 1), ids[0], generation, group=group_id)
        assert codes == (ErrorCode.NONE,) * len(committed)
    group = driver.shard.groups[group_id]
    assert group.state.name == "STABLE"
    later = driver.now_s + 20 * 24 * 3_600
    driver.now_s = later
    gone = driver.shard._retention.step(driver.now)
    lasting = [name for name in committed if name.removeprefix(prefix) in topics]
    assert len(gone) == len(committed) - len(lasting)
    (member,) = driver.shard.describe(group_id).members
    assert (member.metadata, member.assignment) == (written, ids[0].encode()), "nobody's business, and untouched"


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "setdefault", "pop", "del"]),
        st.builds("{}{}".format, st.sampled_from([*PREFIXES, "lkc-aaaaaaa_", "lkc-"]), st.sampled_from("abc")),
    ),
    max_size=60,
)


@given(operations=OPERATIONS)
def test_the_index_knows_what_a_look_at_every_id_finds(operations: list[tuple[str, str]]) -> None:
    index: ByTenant[int] = ByTenant()
    plain: dict[str, int] = {}
    for number, (operation, key) in enumerate(operations):
        both: tuple[Any, Any] = (index, plain)
        for known in both:
            if operation == "set":
                known[key] = number
            elif operation == "setdefault":
                known.setdefault(key, number)
            elif operation == "pop":
                known.pop(key, None)
            elif key in known:
                del known[key]
        assert dict(index) == plain
        for prefix in (*PREFIXES, "lkc-aaaaaa", "lkc-cccccc_", "a"):
            assert index.with_prefix(prefix) == [one for one in plain if one.startswith(prefix)]
        assert all(index._of_tenant.values()), "nothing is kept of tenants without groups"


class Guarded(ByTenant[Any]):
    """Nobody goes through all of it."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a look at every group")

    def keys(self) -> Any:
        raise AssertionError("a look at every group")

    items = values = keys


def test_a_tenants_list_looks_at_the_tenants_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = GroupDriver(QUICK)
    rng = random.Random(5)
    mine, theirs = PREFIXES[1:]
    for number in range(200):
        prefix = mine if number % 10 == 0 else rng.choice(["", theirs])
        driver.commit({("t", 0): 1}, group=f"{prefix}simple-{number}")
    driver.stable_group(2, group=f"{mine}members")
    driver.stable_group(2, group=f"{theirs}members")
    expected = {f"{mine}members", *(f"{mine}simple-{number}" for number in range(0, 200, 10))}
    for holder, name in ((driver.shard, "groups"), (driver.shard, "committed"), (driver.shard.offsets, "_by_group")):
        guarded = Guarded()
        for group_id, value in getattr(holder, name).items():
            guarded[group_id] = value
        monkeypatch.setattr(holder, name, guarded)
    assert {listed.group_id for listed in at_once(driver.shard.list_groups(mine))} == expected
    assert set(filter(None, driver.shard.names((mine,)))) == expected
    with pytest.raises(AssertionError, match="a look at every group"):
        at_once(driver.shard.list_groups())
