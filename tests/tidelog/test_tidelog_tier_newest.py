"""Before a topic is restored: whether the manifests that it is restored from show all that the tier has finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.object_store.memory_store import MemoryStore
from tests.tiering.test_tiering_checking import dropped
from tests.tiering.tier_world import ROOT
from tidelog.tier import newest as tier_newest
from tidelog.tier.newest import LOOKS, late_partitions
from tiering.upkeep.checking import State
from tiering.upkeep.inventory import FoundTopic, find_topics

NO_CLIENT: Any = None


class Store:
    """As `BlockingStore`."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def wait(self, make: Any) -> Any:
        return asyncio.run(make())


async def found_topic() -> tuple[FoundTopic, Any, int]:
    world = await dropped()
    (topic,) = await find_topics(world.store, ROOT)
    manifest = topic.partitions[0].manifest
    assert manifest is not None
    return topic, Store(world.store), manifest.head.tier_state_offset


def answering(monkeypatch: pytest.MonkeyPatch, *states: State | str) -> list[int]:
    """Each look's answer, the last of them ever after; what was asked."""
    asked: list[int] = []

    def read_state(_client: object, _topic_id: bytes, partition: int) -> State | str:
        asked.append(partition)
        return states[min(len(asked), len(states)) - 1]

    monkeypatch.setattr(tier_newest, "read_state", read_state)
    return asked


def test_a_manifest_that_shows_all_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, store, shown = asyncio.run(found_topic())
    for state in (State(True, 0, 30, 5, shown, []), State(False, 0, 0, 0, shown + 9, [])):
        answering(monkeypatch, state)
        assert late_partitions(NO_CLIENT, store, ROOT, topic, lambda _: None) == ({}, {})


def test_one_that_is_behind_is_waited_for_and_then_told(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, store, shown = asyncio.run(found_topic())
    ahead = State(True, 0, 40, 5, shown + 3, [])
    asked = answering(monkeypatch, ahead, ahead, State(True, 0, 30, 5, shown, []))
    pauses: list[float] = []
    assert late_partitions(NO_CLIENT, store, ROOT, topic, pauses.append) == ({}, {})
    assert (len(asked), len(pauses)) == (3, 2)
    asked = answering(monkeypatch, ahead)
    late, silent = late_partitions(NO_CLIENT, store, ROOT, topic, lambda _: None)
    assert (len(asked), silent) == (LOOKS, {})
    assert f"up to offset {shown}, which stands at {shown + 3}" in late[0]
    assert "lacks the offsets 30 to 39" in late[0]


def test_a_state_that_cannot_be_read_is_told_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, store, _ = asyncio.run(found_topic())
    asked = answering(monkeypatch, "no leader")
    assert late_partitions(NO_CLIENT, store, ROOT, topic, lambda _: None) == ({}, {0: "no leader"})
    assert asked == [0]
