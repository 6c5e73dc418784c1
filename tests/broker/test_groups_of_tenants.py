"""Groups of tenants: what their members wrote of topics stays as they wrote it, offsets live by it, and a list of one
tenant's groups looks at nobody else's."""

from __future__ import annotations

import random
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.tenant_index import ByTenant, bytes_of_id
from common.errors import ErrorCode
from common.pacing import at_once
from kraft.image.tenants import tenant_of
from tests.broker.group_driver import GroupDriver, subscription
from tests.common.call_count import counted_calls
from tests.common.kept_memory import kept_bytes

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
DAY_MS = 24 * 3_600_000
PATIENT = GroupConfig(
    group_initial_rebalance_delay_ms=0,
    group_max_session_timeout_ms=24 * DAY_MS,
    offsets_retention_check_interval_ms=DAY_MS,
)  # a member that says nothing stays longer than offsets are kept
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
    driver = GroupDriver(PATIENT)
    group_id = f"{prefix}flights"
    written = subscription(topics)
    generation, ids = driver.stable_group(
        1, group=group_id, protocols=(("range", written),), session_ms=PATIENT.group_max_session_timeout_ms
    )
    committed = dict.fromkeys(f"{prefix}{name}" for name in [*topics, *others])
    driver.topics.update({name: name.encode().ljust(16)[:16] for name in committed})
    if committed:
        codes = driver.commit(dict.fromkeys(((name, 0) for name in committed), 1), ids[0], generation, group=group_id)
        assert codes == (ErrorCode.NONE,) * len(committed)
    group = driver.shard.groups[group_id]
    assert group.state.name == "STABLE"
    before = len(driver.log)
    driver.advance(20 * DAY_MS / 1000)
    gone = driver.log[before:]
    lasting = [name for name in committed if name.removeprefix(prefix) in topics]
    assert len(gone) == len(committed) - len(lasting)
    (member,) = driver.shard.describe(group_id).members
    assert (member.metadata, member.assignment) == (written, ids[0].encode()), "nobody's business, and untouched"


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "setdefault", "pop", "del"]),
        st.builds(
            "{}{}".format, st.sampled_from([*PREFIXES, "lkc-aaaaaaa_", "lkc-"]), st.sampled_from(["a", "b", "c", "äbc"])
        ),
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
        assert index.all_id_bytes == sum(map(bytes_of_id, plain))
        for tenant in (None, "lkc-aaaaaa", "lkc-bbbbbb", "lkc-aaaaaaa", "lkc-cccccc"):
            own = [one for one in plain if tenant_of(one) == tenant]
            assert (index.count(tenant), index.id_bytes(tenant)) == (len(own), sum(map(bytes_of_id, own)))


@given(st.text(max_size=40))
def test_an_id_takes_no_more_than_is_counted(name: str) -> None:
    assert sys.getsizeof(name) - sys.getsizeof("") <= bytes_of_id(name) + 40, "CPython's head of what is not ASCII"
    assert len(name.encode()) <= bytes_of_id(name)


def test_long_ids_count_where_memory_is_bounded() -> None:
    """Twice for a group's offsets, and once for its record."""
    driver = GroupDriver(QUICK)
    before = driver.shard.held_bytes()
    driver.commit({("t", 0): 1}, group="g" * 30_000)
    simple = driver.shard.held_bytes()
    assert 60_000 < simple - before < 62_000
    driver.stable_group(2, group="m" * 30_000)
    assert 30_000 < driver.shard.held_bytes() - simple < 32_000


def test_the_index_keeps_nothing_of_tenants_without_groups() -> None:
    """A kept name and an empty dict would take some 200 bytes each."""
    index: ByTenant[int] = ByTenant()

    def come_and_go() -> None:
        for number in range(2_000):
            index[f"lkc-{number:06d}_g"] = number
            if number % 2:
                index.pop(f"lkc-{number:06d}_g")
            else:
                del index[f"lkc-{number:06d}_g"]

    assert kept_bytes(come_and_go)[1] < 20 * 2_000


def test_a_tenants_list_looks_at_the_tenants_groups_alone() -> None:
    """However many others there are, it costs as much."""
    mine, theirs = PREFIXES[1:]

    def listed(others: int) -> tuple[int, int]:
        """Calls for the tenant's list, and for everybody's."""
        driver, rng = GroupDriver(QUICK), random.Random(5)
        for number in range(others):
            driver.commit({("t", 0): 1}, group=f"{rng.choice(['', theirs])}simple-{number}")
            if number < 20:
                driver.commit({("t", 0): 1}, group=f"{mine}simple-{number}")
        for prefix in (mine, theirs):
            driver.stable_group(2, group=f"{prefix}members")
        for number in range(others // 10):
            driver.stable_group(1, group=f"{theirs}members-{number}")
        expected = {f"{mine}members", *(f"{mine}simple-{number}" for number in range(20))}
        with counted_calls() as own:
            groups, names = at_once(driver.shard.list_groups(mine)), list(driver.shard.names((mine,)))
        assert {one.group_id for one in groups} == set(filter(None, names)) == expected
        with counted_calls() as whole:
            at_once(driver.shard.list_groups())
        return own.calls, whole.calls

    few, many = listed(100), listed(400)
    assert many[0] == few[0]
    assert many[1] > 2 * few[1]
