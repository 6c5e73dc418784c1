"""Following and serving the metadata of a large cluster, a piece at a time: counted, not timed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from common.pacing import SLICE_COST, Pacer
from kraft.batches import MetadataRecord
from kraft.controller.metadata_fetch import MetadataFetch
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.records import PIECE_RECORDS_MAX, PartitionRecord, TopicRecord
from tests.kraft.observed_log import Controller, LocalLinks, Writer
from tests.virtual_time import lab_ports

TOPICS, PARTITIONS = 40, 100


def large_log() -> Writer:
    """A batch per topic."""
    writer = Writer()
    for number in range(TOPICS):
        topic_id = number.to_bytes(16, "big")
        records: list[MetadataRecord] = [TopicRecord(f"t{number}", topic_id)]
        records += [PartitionRecord(topic_id, index, (0, 1, 2), (0, 1, 2), leader=0) for index in range(PARTITIONS)]
        writer.write(records)
    return writer


def observer_of(links: LocalLinks, root: Path, pacer: Pacer) -> MetadataObserver:
    config = ObserverConfig(0, "metadata", fetch_wait_s=0.05)
    return MetadataObserver(lab_ports(root), links, links.addresses, config, pacer, pytest.fail)


async def test_an_observer_takes_what_it_missed_in_pieces(tmp_path: Path) -> None:
    writer = large_log()
    controller = Controller(writer)
    controller.learn()
    observer = observer_of(LocalLinks({100: controller}), tmp_path, Pacer())
    steps: list[tuple[int, int]] = []
    observer.subscribe(lambda delta, image: steps.append((delta.base.offset, image.offset)))
    await observer.start()
    assert await observer.wait_for(writer.end - 1, 10)
    await observer.stop()
    assert observer.image == controller.machine.image
    assert all(before[1] == after[0] for before, after in itertools.pairwise(steps))
    assert max(end - base for base, end in steps) < PIECE_RECORDS_MAX + PARTITIONS + 1
    assert len(controller.fetches) < len(steps)  # several pieces of one answer

    again = observer_of(LocalLinks({100: controller}), tmp_path, Pacer())
    await again.start()  # each piece is in the copy
    assert again.image == controller.machine.image
    await again.stop()


async def test_a_snapshot_for_observers_is_made_once_for_all_that_ask_and_taken_in_slices(tmp_path: Path) -> None:
    async def taken(count: int) -> int:
        """By so many observers that come together; slices of the controller's work."""
        controller = Controller(large_log(), batches_max=10)
        controller.learn()
        serving, taking = Pacer(inline_cost=0), Pacer(inline_cost=0)
        controller.fetch = MetadataFetch(controller.machine, serving, lambda: True)
        links = LocalLinks({100: controller})
        observers = [observer_of(links, tmp_path / f"{count}-{number}", taking) for number in range(count)]
        await asyncio.gather(*(observer.start() for observer in observers))
        end = controller.writer.end - 1
        assert all(await asyncio.gather(*(observer.wait_for(end, 10) for observer in observers)))
        await asyncio.gather(*(observer.stop() for observer in observers))
        assert all(observer.image == controller.machine.image for observer in observers)
        for pacer in (serving, taking):
            assert pacer.slices > 5
            assert pacer.costliest < 3 * SLICE_COST
        return serving.slices

    assert await taken(5) == await taken(1)
