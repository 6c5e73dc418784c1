"""Records, image, deltas, snapshots, and the verdicts of the state machine."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.batches import Batch, BatchHeader, BatchKind, MetadataRecord, decode_batch, encode_batch
from kraft.controller.state_machine import MetadataStateMachine, Verdict
from kraft.image.delta import MetadataDelta, ReplayError, replayed
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import DamagedSnapshot, decode_snapshot, encode_snapshot
from kraft.metadata_log import MetadataLog
from kraft.records import (
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    LeaderChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from tests.common.call_count import counted_calls
from tests.kraft.images import registered, with_brokers

A, B = bytes([1] * 16), bytes([2] * 16)

CALLS_PER_PARTITION = 300  # 240 in a topic of its own, of a snapshot that is written and read


def header(epoch: int = 1, sequence: int = 1, base: int = 0, kind: BatchKind = BatchKind.RECORDS) -> BatchHeader:
    return BatchHeader(epoch, 1, sequence, base, kind, 0, 5)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_batch_are_none_and_no_exception(data: bytes) -> None:
    decoded = decode_batch(data)
    assert decoded is None or decoded.records


def test_damaging_any_byte_of_a_batch_raises_nothing() -> None:
    data = encode_batch(Batch(header(), [TopicRecord("t", A), PartitionRecord(A, 0, (0, 1), (0, 1), 0)]))
    for at in range(len(data)):
        for value in (0, 0xFF, data[at] ^ 0x80):
            decode_batch(data[:at] + bytes([value]) + data[at + 1 :])
        decode_batch(data[:at])


def test_a_later_versions_fields_at_a_records_end_are_skipped() -> None:
    plain = msgspec.msgpack.decode(encode_batch(Batch(header(), [TopicRecord("t", A)])))
    plain[1][0].append("of a later version")
    decoded = decode_batch(msgspec.msgpack.encode(plain))
    assert decoded is not None
    assert decoded.records == [TopicRecord("t", A)]
    plain[1][0][0] = 999
    assert decode_batch(msgspec.msgpack.encode(plain)) is None


@pytest.mark.parametrize(
    "records",
    [
        [PartitionRecord(A, 0, (0,), (0,), 0)],
        [PartitionChangeRecord(A, 0, isr=(0,))],
        [RemoveTopicRecord(A)],
        [TopicRecord("t", A), TopicRecord("t", B)],
        [TopicRecord("t", A), TopicRecord("u", A)],
        [TopicRecord("t", A), PartitionRecord(A, 0, (0,), (0,), 0), PartitionRecord(A, 0, (0,), (0,), 0)],
        [TopicRecord("t", A), RemoveTopicRecord(A), RemoveTopicRecord(A)],
        [ClusterRecord("a"), ClusterRecord("b")],
        [ProducerIdsRecord(0, 0, 1000), ProducerIdsRecord(0, 0, 500)],
    ],
)
def test_records_that_contradict_the_image_are_refused(records: list[MetadataRecord]) -> None:
    with pytest.raises(ReplayError):
        replayed(EMPTY_IMAGE, records)


def test_an_image_never_changes() -> None:
    first = replayed(with_brokers(2), [TopicRecord("t", A), PartitionRecord(A, 0, (0, 1), (0, 1), 0)])
    kept = decode_snapshot(encode_snapshot(first))
    second = replayed(first, [PartitionChangeRecord(A, 0, isr=(0,)), TopicRecord("u", B)])
    replayed(second, [RemoveTopicRecord(A), ConfigRecord(ResourceType.BROKER, "", "a", "1")])
    registered(second, 1, life=1)
    assert first == kept
    assert second.topics.by_name["t"] is second.topics.by_id[A]


def test_what_a_delta_says_changed() -> None:
    base = replayed(
        with_brokers(3),
        [TopicRecord("t", A), *(PartitionRecord(A, i, (0, 1), (0, 1), 0) for i in range(3)), TopicRecord("gone", B),
         PartitionRecord(B, 0, (1, 2), (1, 2), 1)],
    )  # fmt: skip
    delta = MetadataDelta(base)
    new = bytes([3] * 16)
    delta.replay_all(
        [
            PartitionChangeRecord(A, 1, leader=1),
            PartitionChangeRecord(A, 2, replicas=(0, 2), isr=(0,)),
            RemoveTopicRecord(B),
            TopicRecord("new", new),
            PartitionRecord(new, 0, (2, 1), (2, 1), 2),
            ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "1"),
        ]
    )
    image = delta.image()
    assert list(delta.partitions_changed) == [(A, 1), (A, 2), (new, 0)]
    assert (list(delta.topics_created), list(delta.topics_deleted)) == ([new], [B])
    assert list(delta.configs_changed) == [(ResourceType.TOPIC, "t")]
    jumped = at_once(differing(base, image))
    assert jumped.partitions_changed == delta.partitions_changed
    assert list(jumped.topics_deleted) == [B]
    assert jumped.image() is image
    assert not jumped.is_empty
    assert at_once(differing(image, image)).is_empty


def test_removing_a_topic_removes_its_configs_and_its_earlier_changes() -> None:
    base = replayed(with_brokers(1), [TopicRecord("t", A), ConfigRecord(ResourceType.TOPIC, "t", "a", "1")])
    delta = MetadataDelta(base)
    delta.replay_all([PartitionRecord(A, 0, (0,), (0,), 0), RemoveTopicRecord(A), TopicRecord("t", B)])
    image = delta.image()
    assert image.topics.by_name["t"].topic_id == B
    assert dict(image.configs.topic("t")) == {}
    assert list(delta.partitions_changed) == []


def large_image(topics: int, partitions: int) -> MetadataImage:
    records: list[MetadataRecord] = []
    for t in range(topics):
        topic_id = t.to_bytes(16, "big")
        records.append(TopicRecord(f"topic-{t}", topic_id))
        records += [PartitionRecord(topic_id, i, (0, 1, 2), (0, 1, 2), 0) for i in range(partitions)]
    return replayed(with_brokers(3), records)


@pytest.mark.parametrize(("topics", "partitions"), [(10, 1000), (10_000, 1)])
def test_ten_thousand_partitions_in_a_snapshot_are_small(topics: int, partitions: int) -> None:
    image = large_image(topics, partitions)
    data = encode_snapshot(image)
    restored = decode_snapshot(data)
    assert len(data) < 1_000_000
    assert restored == image


@pytest.mark.parametrize("topics", [1, 1_000])
def test_a_snapshot_takes_few_calls_per_partition(topics: int) -> None:
    image = large_image(topics, 1_000 // topics)
    with counted_calls() as spent:
        decode_snapshot(encode_snapshot(image))
    assert spent.calls < 1_000 * CALLS_PER_PARTITION


def test_damage_to_a_snapshot_is_noticed() -> None:
    data = encode_snapshot(with_brokers(2))
    for at in range(0, len(data), 7):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(b"")


# -- the state machine


def machine() -> MetadataStateMachine:
    """Controller 1 leads epoch 1."""
    machine = MetadataStateMachine(MetadataLog())
    claim(machine, 1, 1)
    return machine


def claim(machine: MetadataStateMachine, epoch: int, leader: int, sequence: int = 1) -> Verdict:
    record = LeaderChangeRecord(leader, epoch)
    batch = Batch(BatchHeader(epoch, leader, sequence, 0, BatchKind.LEADER_CHANGE), [record])
    return machine.apply(0, encode_batch(batch)).verdict


def offer(
    machine: MetadataStateMachine, epoch: int, leader: int, sequence: int, base: int, version: int = 0
) -> Verdict:
    batch = Batch(BatchHeader(epoch, leader, sequence, base, BatchKind.RECORDS, version), [NoOpRecord()])
    return machine.apply(0, encode_batch(batch)).verdict


def test_only_the_controller_of_the_present_epoch_is_heard() -> None:
    state = machine()
    assert offer(state, 1, 1, 2, 1) is Verdict.APPLIED
    assert offer(state, 1, 2, 3, 2) is Verdict.FENCED
    assert offer(state, 0, 1, 3, 2) is Verdict.FENCED
    assert claim(state, 2, 2) is Verdict.APPLIED
    assert offer(state, 1, 1, 3, 3) is Verdict.FENCED
    assert claim(state, 1, 1, 9) is Verdict.FENCED
    assert claim(state, 2, 1, 9) is Verdict.FENCED
    assert (state.image.epoch, state.image.leader_id, state.image.offset) == (2, 2, 2)


def test_a_batch_is_applied_once_and_at_its_place_only() -> None:
    state = machine()
    assert offer(state, 1, 1, 2, 1) is Verdict.APPLIED
    assert offer(state, 1, 1, 2, 1) is Verdict.DUPLICATE
    assert offer(state, 1, 1, 3, 1) is Verdict.CONFLICT
    assert offer(state, 1, 1, 4, 9) is Verdict.CONFLICT
    assert state.image.offset == 1


def test_the_same_controller_may_claim_its_epoch_again() -> None:
    state = machine()
    assert claim(state, 1, 1, 1) is Verdict.FENCED  # the same claim twice
    assert claim(state, 1, 1, 5) is Verdict.APPLIED
    assert offer(state, 1, 1, 2, 2) is Verdict.DUPLICATE  # from before the second claim


def test_what_cannot_be_read_or_replayed_is_rejected_and_changes_nothing() -> None:
    state = machine()
    image = state.image
    assert state.apply(0, b"\xc1nonsense").verdict is Verdict.REJECTED
    batch = Batch(header(1, 2, 1), [NoOpRecord(), RemoveTopicRecord(A)])
    assert state.apply(0, encode_batch(batch)).verdict is Verdict.REJECTED
    assert offer(state, 1, 1, 2, 1, version=7) is Verdict.REJECTED
    assert state.image is image
    assert state.log.end_offset == image.next_offset


def test_records_are_judged_under_the_finalised_metadata_version() -> None:
    state = machine()
    batch = Batch(header(1, 2, 1), [FeatureLevelRecord("metadata.version", 7)])
    assert state.apply(0, encode_batch(batch)).verdict is Verdict.APPLIED
    assert offer(state, 1, 1, 3, 2, version=0) is Verdict.REJECTED
    assert offer(state, 1, 1, 3, 2, version=7) is Verdict.APPLIED


def test_restoring_a_snapshot_tells_subscribers_and_restarts_the_log() -> None:
    state = machine()
    offer(state, 1, 1, 2, 1)
    data = at_once(state.snapshot())
    other = MetadataStateMachine(MetadataLog())
    seen: list[int] = []
    other.subscribe(lambda _delta, image: seen.append(image.offset))
    at_once(other.restoring(data))()
    assert other.image == state.image
    assert seen == [1]
    assert (other.log.start_offset, other.log.end_offset) == (2, 2)
    assert offer(other, 1, 1, 3, 2) is Verdict.APPLIED
