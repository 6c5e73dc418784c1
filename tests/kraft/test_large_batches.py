"""A batch of ten thousand records is one commit, and work in parts for everybody: counted, not timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.pacing import SLICE_COST, Pacer, at_once
from kraft.batch_codec import assembled_batch, decoding_batch, encoding_records
from kraft.batches import Batch, BatchHeader, MetadataRecord, decode_batch, encode_batch
from kraft.controller.state_machine import MetadataStateMachine, Verdict
from kraft.image.metadata import MetadataImage
from kraft.metadata_log import MetadataLog
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.records import NoOpRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from tests.kraft.observed_log import Controller, LocalLinks, Writer
from tests.kraft.works import costs_of
from tests.virtual_time import lab_ports

PARTITIONS = 10_000
TOPIC_ID = b"0123456789abcdef"
COST_MAX = SLICE_COST * 4  # of a part: some milliseconds


def large_topic(topic_id: bytes = TOPIC_ID, name: str = "large", partitions: int = PARTITIONS) -> list[MetadataRecord]:
    brokers = [(index % 3, (index + 1) % 3, (index + 2) % 3) for index in range(partitions)]
    made = [PartitionRecord(topic_id, index, three, three, three[0]) for index, three in enumerate(brokers)]
    return [TopicRecord(name, topic_id), *made]


def applying(machine: MetadataStateMachine, records: list[MetadataRecord]) -> list[int]:
    """The costs of the parts in which a batch is applied, before whose end nothing of it is seen."""
    image = machine.image
    header = BatchHeader(image.epoch, image.leader_id, image.sequence + 1, image.next_offset)
    seen: list[MetadataImage] = []
    costs, applied = costs_of(
        machine.applying(0, encode_batch(Batch(header, records))), lambda: seen.append(machine.image)
    )
    assert applied.verdict is Verdict.APPLIED
    assert all(before is image for before in seen)
    return costs


async def test_a_large_topic_is_applied_in_parts_and_seen_as_a_whole() -> None:
    controller = Controller(Writer())
    controller.learn()
    machine = controller.machine
    costs = applying(machine, large_topic())
    assert machine.image.topics.partition_count == PARTITIONS
    assert len(machine.image.topics.index.led_by(0)) == 3_334
    assert max(costs) <= COST_MAX
    assert len(costs) > 100
    assert sum(applying(machine, [RemoveTopicRecord(TOPIC_ID, "large")])) < 500, "its partitions are not looked at"
    assert not machine.image.topics.index.replicas


async def test_thousands_of_topics_go_in_parts() -> None:
    controller = Controller(Writer())
    controller.learn()
    machine = controller.machine
    ids = [number.to_bytes(16, "big") for number in range(1_000)]
    for number, topic_id in enumerate(ids):
        applying(machine, large_topic(topic_id, f"t{number}", 5))
    records: list[MetadataRecord] = [RemoveTopicRecord(topic_id) for topic_id in ids]
    assert max(applying(machine, records)) <= COST_MAX
    assert not len(machine.image.topics)


@pytest.mark.parametrize("count", [1, 15, 16, 3_000, 70_000])
def test_a_batch_in_parts_has_the_bytes_of_one_that_is_encoded_at_once(count: int) -> None:
    records: list[MetadataRecord] = [*[NoOpRecord()] * (count - 1), TopicRecord("t" * 400, TOPIC_ID)]
    batch = Batch(BatchHeader(3, 1, 4, 5), records)
    data = assembled_batch(batch.header, at_once(encoding_records(records)))
    assert data == encode_batch(batch)
    assert at_once(decoding_batch(data)) == batch


def test_a_large_batch_that_cannot_be_decoded_is_none() -> None:
    data = encode_batch(Batch(BatchHeader(3, 1, 4, 5), large_topic()))
    unknown = data.replace(b"\x09\xc4\x10" + TOPIC_ID + b"\xcd\x20\x00", b"\x78\xc4\x10" + TOPIC_ID + b"\xcd\x20\x00")
    assert unknown != data, "a record of an unknown type"
    for damaged in (data[:-1], data + b"\x00", unknown):
        assert decode_batch(damaged) is None
        assert at_once(decoding_batch(damaged)) is None


async def test_an_observer_takes_a_large_batch_in_slices_and_tells_of_it_once(tmp_path: Path) -> None:
    writer = Writer()
    writer.write(large_topic())
    controller, pacer = Controller(writer), Pacer(inline_cost=0)
    controller.learn()
    links = LocalLinks({100: controller})
    config = ObserverConfig(0, "metadata", fetch_wait_s=0.05)
    observer = MetadataObserver(lab_ports(tmp_path), links, links.addresses, config, pacer, pytest.fail)
    seen: dict[int, None] = {}
    observer.subscribe(lambda delta, image: seen.update({image.topics.partition_count: None}))
    await observer.start()
    assert await observer.wait_for(writer.end - 1, 10)
    await observer.stop()
    assert observer.image == controller.machine.image
    assert list(seen) in ([PARTITIONS], [0, PARTITIONS])
    assert pacer.costliest <= COST_MAX
    assert pacer.slices > 20


async def test_the_log_serves_the_bytes_that_were_committed() -> None:
    writer = Writer()
    writer.write(large_topic())
    controller = Controller(writer)
    controller.learn()
    other = MetadataLog()
    for data in writer.batches:
        batch = decode_batch(data)
        assert batch is not None
        other.append(batch)
    assert controller.machine.log.read(0, 1 << 20) == other.read(0, 1 << 20)
