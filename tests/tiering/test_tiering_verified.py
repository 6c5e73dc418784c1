"""The outcomes of verifications in the bucket: what is kept of them, within which bounds, and what they disturb."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from object_store.errors import StoreUnavailable, VersionConflict
from object_store.store import ObjectInfo
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT
from tiering.bucket.sealed import sealed
from tiering.bucket.verified import (
    FILE_BYTES_MAX,
    NAMES_MAX,
    RUNS_MAX,
    TOPICS_MAX,
    Run,
    TopicOutcome,
    Verifications,
    decode_verifications,
    encode_verifications,
    keep_verification,
    read_verifications,
)
from tiering.upkeep.inventory import find_clusters, find_topics

NONE = Verifications(cluster_id=ROOT.cluster_id)


def run(ended_ms: int, **fields: Any) -> Run:
    return Run(began_ms=ended_ms - 5, ended_ms=ended_ms, **fields)


def of_topic(number: int, ended_ms: int, **fields: Any) -> TopicOutcome:
    return TopicOutcome(
        topic=f"t{number}", topic_id=f"{number:032x}", began_ms=ended_ms - 5, ended_ms=ended_ms, **fields
    )


@st.composite
def verifications(draw: st.DrawFn) -> list[tuple[Run, list[TopicOutcome]]]:
    """One after the other: of everything, or of a topic."""
    found = []
    for ended_ms in range(1, draw(st.integers(1, 12)) + 1):
        number, deep, problems = draw(st.integers(-1, 2)), draw(st.booleans()), draw(st.integers(0, 2))
        same: dict[str, Any] = {"deep": deep, "problems": problems}
        topics = [of_topic(one, ended_ms, **same) for one in (range(3) if number < 0 else [number])]
        chosen: dict[str, Any] = {} if number < 0 else {"topics": (f"t{number}",), "topic_count": 1}
        found.append((run(ended_ms, **chosen, **same), topics))
    return found


@given(verifications())
def test_damage_stays_until_a_look_as_close_finds_none(made: list[tuple[Run, list[TopicOutcome]]]) -> None:
    found = NONE
    for one, topics in made:
        found = decode_verifications(encode_verifications(found.joined(one, topics)))
    assert found.last == made[-1][0], "the last one is always there"
    for topic in range(3):
        outcomes = [of for _, topics in made for of in topics if of.topic == f"t{topic}"]
        quick, deep = outcomes[-1:], [one for one in outcomes if one.deep][-1:]
        kept = [one for one in found.topics if one.topic == f"t{topic}"]
        assert set(kept) == {*quick, *deep}
    whole = [one for one, _ in made if one.is_whole]
    for latest in (whole[-1:], [one for one in whole if one.deep][-1:]):
        assert set(latest) <= set(found.runs)


def test_a_ledger_that_damage_was_found_with_is_asked_again() -> None:
    lost = run(1, problems=1, compared=("ledger",))
    assert NONE.joined(lost, []).joined(run(2), []).runs == (run(2), lost)
    again = run(3, compared=("keys", "ledger"))
    assert NONE.joined(lost, []).joined(again, []).runs == (again,)
    well = run(1, compared=("ledger",))
    assert NONE.joined(well, []).joined(run(2), []).runs == (run(2),)


def test_partitions_say_nothing_of_the_others() -> None:
    damaged, part = of_topic(1, 1, problems=1), of_topic(1, 2, partitions="0-3")
    assert NONE.joined(run(1), [damaged]).joined(run(2, partitions="0-3"), [part]).topics == (part, damaged)


def test_the_file_is_bounded_whatever_was_verified() -> None:
    found, long = NONE, "x" * 10_000
    for number in range(1, 2 * RUNS_MAX):
        names = tuple(f"{at}{'n' * 248}" for at in range(10 * NAMES_MAX))
        one = run(number, topics=names, topic_count=len(names), tenant=f"{number}{long}", partitions=long, version=long)
        found = found.joined(replace(one, problems=1), [])
    assert len(found.runs) == RUNS_MAX
    found = found.joined(run(100, tenant="new"), [])
    long_names = [
        replace(of_topic(at, 101, problems=at == 5_000, partitions=long), topic="n" * 249) for at in range(10_000)
    ]
    assert found.last == run(100, tenant="new"), "the last one is always there"
    found = found.joined(run(101), long_names)
    assert (len(found.runs), len(found.topics)) == (1, TOPICS_MAX)
    assert found.topics[0].problems or any(one.problems for one in found.topics), "damage stays"
    found = found.joined(run(102, tenant="a"), [])
    assert len(encode_verifications(found)) < FILE_BYTES_MAX


@pytest.mark.parametrize(
    ("chosen", "scope"),
    [
        ({}, "everything"),
        ({"topics": ("a",), "topic_count": 1, "partitions": "0,2"}, "topic a, partitions 0,2"),
        ({"topics": ("a", "b"), "topic_count": 9}, "topics a, b and 7 more"),
        ({"tenant": "lkc-abcdef"}, "tenant lkc-abcdef"),
        ({"topic_id": "07" * 16}, f"topic id {'07' * 16}"),
    ],
)
def test_what_was_covered_is_said(chosen: dict[str, Any], scope: str) -> None:
    assert run(1, **chosen).scope == scope
    assert run(1, **chosen).is_whole == (not chosen)


async def test_it_lies_beside_the_topics_and_is_none() -> None:
    store = MemoryStore()
    assert await read_verifications(store, ROOT) is None
    await keep_verification(store, ROOT, run(1), [of_topic(1, 1)])
    assert await read_verifications(store, ROOT) == NONE.joined(run(1), [of_topic(1, 1)])
    assert list(store.objects) == [ROOT.verified_file]
    assert not await find_topics(store, ROOT)
    assert await find_clusters(store) == []
    assert ROOT.parse_key(ROOT.verified_file) is None
    with pytest.raises(ValueError, match="a tenant cannot have the name"):
        ROOT.tenant_prefix("verified.json")


class ContestedStore(MemoryStore):
    """Another run comes between before each of the first `times` writes."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        if self.left:
            self.left -= 1
            raise VersionConflict(self.name, "replace", key, "the object has another version")
        return await super().replace(key, body, expected_version)


async def test_two_runs_at_once_both_count() -> None:
    await keep_verification(ContestedStore(3), ROOT, run(1), [])
    with pytest.raises(StoreUnavailable, match="others changed it"):
        await keep_verification(ContestedStore(10), ROOT, run(1), [])


@pytest.mark.parametrize("body", [b"", b"{", b'{"format":1}', sealed(b'{"format":1}').replace(b"1", b"2", 1)])
async def test_a_damaged_file_is_replaced(body: bytes) -> None:
    store = MemoryStore()
    await store.put(ROOT.verified_file, body)
    with pytest.raises(ValueError):  # noqa: PT011  whichever it is
        await read_verifications(store, ROOT)
    await keep_verification(store, ROOT, run(1), [])
    assert await read_verifications(store, ROOT) == NONE.joined(run(1), [])


async def test_a_later_format_is_left_alone() -> None:
    store, body = MemoryStore(), sealed(msgspec.json.encode({"format": 2, "other": True}))
    await store.put(ROOT.verified_file, body)
    with pytest.raises(ValueError, match="in format 2"):
        await keep_verification(store, ROOT, run(1), [])
    assert await store.get(ROOT.verified_file) == body


async def test_what_is_too_large_is_not_read() -> None:
    store = MemoryStore()
    await store.put(ROOT.verified_file, b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="larger than"):
        await read_verifications(store, ROOT)
