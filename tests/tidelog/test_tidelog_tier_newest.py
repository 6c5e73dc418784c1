"""Before a topic is restored: whether the manifests that it is restored from show all that the tier has finished."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.tidelog.tier_client import StoreHere, TierClient
from tests.tiering.test_tiering_checking import dropped
from tests.tiering.tier_world import ROOT
from tidelog.tier.newest import LOOKS, late_partitions
from tiering.upkeep.checking import State
from tiering.upkeep.inventory import FoundTopic, find_topics


async def found_topic() -> tuple[FoundTopic, Any, int]:
    world = await dropped()
    (topic,) = await find_topics(world.store, ROOT)
    manifest = topic.partitions[0].manifest
    assert manifest is not None
    return topic, StoreHere(world.store), manifest.head.tier_state_offset


def answering(*states: State | str) -> Any:
    return TierClient(*states)


def test_a_manifest_that_shows_all_is_the_newest() -> None:
    topic, store, shown = asyncio.run(found_topic())
    for state in (State(True, 0, 30, 5, shown, []), State(False, 0, 0, 0, shown + 9, [])):
        assert late_partitions(answering(state), store, ROOT, topic, lambda _: None) == ({}, {})


def test_one_that_is_behind_is_waited_for_and_then_told() -> None:
    topic, store, shown = asyncio.run(found_topic())
    ahead = State(True, 0, 40, 5, shown + 3, [])
    client = answering(ahead, ahead, State(True, 0, 30, 5, shown, []))
    pauses: list[float] = []
    assert late_partitions(client, store, ROOT, topic, pauses.append) == ({}, {})
    assert (len(client.asked), len(pauses)) == (3, 2)
    client = answering(ahead)
    late, silent = late_partitions(client, store, ROOT, topic, lambda _: None)
    assert (len(client.asked), silent) == (LOOKS, {})
    assert f"up to offset {shown}, which stands at {shown + 3}" in late[0]
    assert "lacks the offsets 30 to 39" in late[0]


def test_a_state_that_cannot_be_read_is_told_and_asked_once() -> None:
    topic, store, _ = asyncio.run(found_topic())
    client = answering("no leader")
    assert late_partitions(client, store, ROOT, topic, lambda _: None) == ({}, {0: "no leader"})
    assert client.asked == [0]
