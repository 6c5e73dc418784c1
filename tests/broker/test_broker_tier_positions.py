"""The export of positions: looked at when one has moved, in slices, and written when a user's has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.tier.exports import LED_AT_ONCE, BrokerExports
from common.pacing import SLICE_COST, Pacer
from kraft.topic_names import GROUP_TOPIC
from tests.virtual_time import LoopClock
from tiering.exports.exports import POSITIONS


class Led:
    topic_id = bytes(16)
    index = 0
    leader_epoch = 0
    is_leader = True

    def __init__(self, topic: str, high_watermark: int) -> None:
        self.topic = topic
        self.high_watermark = high_watermark


class Hosted:
    node_id = 3

    def __init__(self, count: int) -> None:
        self.partitions = [Led("t", 5) for _ in range(count)] + [Led(GROUP_TOPIC, 7)]
        self.position_changes = 1
        self.looks = 0

    @property
    def led(self) -> Iterator[Led]:
        self.looks += 1
        return iter(self.partitions)


class NoGroups:
    def hosted(self) -> list[int]:
        return []


def exports_of(hosted: Hosted, pacer: Pacer) -> BrokerExports:
    given: list[Any] = [hosted, NoGroups(), None, LoopClock(), pacer]
    return BrokerExports(*given)


async def mark(exports: BrokerExports) -> int:
    (found,) = await exports.exports()
    assert (found.kind, found.scope) == (POSITIONS, 3)
    return found.mark


async def test_nothing_is_looked_at_while_no_position_moves() -> None:
    hosted, pacer = Hosted(50 * LED_AT_ONCE), Pacer()
    exports = exports_of(hosted, pacer)
    first = await mark(exports)
    assert pacer.slices > 1
    assert pacer.costliest <= 2 * SLICE_COST
    assert await mark(exports) == first
    assert hosted.looks == 1


@pytest.mark.parametrize(("partition", "is_new"), [(0, True), (-1, False)])
async def test_only_users_partitions_make_it_new(partition: int, is_new: bool) -> None:
    hosted = Hosted(3)
    exports = exports_of(hosted, Pacer())
    first = await mark(exports)
    hosted.partitions[partition].high_watermark += 1
    hosted.position_changes += 1
    assert (await mark(exports) != first) is is_new


async def test_a_broker_that_leads_nothing_has_no_positions() -> None:
    hosted = Hosted(0)
    assert await exports_of(hosted, Pacer()).exports() == []
