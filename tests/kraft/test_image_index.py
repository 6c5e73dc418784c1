"""What a change of the metadata costs beside much that does not change, and what is found without a look at it."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kraft.batches import MetadataRecord
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.partition_index import PartitionKey, PartitionSet
from kraft.image.partition_table import PLAIN_MAX, PartitionTable
from kraft.image.partitions import PartitionImage
from kraft.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from tests.common.kept_memory import kept_bytes

BROKERS = range(4)
NO_REPLICA = 99
_replicas = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True).map(tuple)
_members = st.lists(st.sampled_from(BROKERS), max_size=3, unique=True).map(tuple)


def topic_id(number: int) -> bytes:
    return random.Random(number).randbytes(16)


@st.composite
def records(draw: st.DrawFn) -> MetadataRecord:
    topic, index = topic_id(draw(st.integers(0, 3))), draw(st.integers(0, 2))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return RemoveTopicRecord(topic)
    if kind == 1:
        return TopicRecord(topic.hex(), topic)
    if kind <= 4:
        return PartitionRecord(topic, index, draw(_replicas), draw(_members), draw(st.integers(-1, 3)))
    return PartitionChangeRecord(
        topic,
        index,
        isr=draw(st.none() | _members),
        leader=draw(st.none() | st.integers(-1, 3)),
        replicas=draw(st.none() | _replicas),
        adding=draw(st.none() | _members),
        removing=draw(st.none() | _members),
        elr=draw(st.none() | _members),
        last_known_elr=draw(st.none() | _members),
    )


def expect(image: MetadataImage, found: PartitionSet, wanted: object) -> None:
    assert callable(wanted)
    keys = [(p.topic_id, p.partition) for p in image.topics.partitions() if wanted(p)]
    assert sorted(found) == sorted(keys)
    assert len(found) == len(keys)
    assert all(key in found for key in keys)


def check_index(image: MetadataImage) -> None:
    index, none = image.topics.index, NO_REPLICA
    for broker in (*BROKERS, none):
        expect(image, index.with_replica(broker), lambda p, b=broker: b in p.replicas)
        expect(image, index.in_sync_with(broker), lambda p, b=broker: b in p.isr)
        expect(image, index.eligible_with(broker), lambda p, b=broker: b in p.elr)
        expect(image, index.led_by(broker), lambda p, b=broker: p.leader == b)
    expect(image, index.leaderless, lambda p: not p.has_leader)
    expect(image, index.short, lambda p: len(p.isr) < len(p.replicas))
    expect(image, index.under_replicated, lambda p: len(p.isr) < len(p.replicas) - len(p.adding))
    expect(image, index.moving, lambda p: p.is_reassigning)
    expect(image, index.unsettled, lambda p: p.elr or p.last_known_elr)
    expect(image, index.astray, lambda p: p.has_leader and p.leader != p.preferred_leader)
    assert image.topics.partition_count == len(list(image.topics.partitions()))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(records(), max_size=6), max_size=12))
def test_the_index_is_what_a_look_at_all_partitions_finds(batches: list[list[MetadataRecord]]) -> None:
    image = EMPTY_IMAGE
    for batch in batches:
        fitting: list[MetadataRecord] = []
        for record in batch:
            try:
                replayed(image, [*fitting, record])
            except ValueError:
                continue
            fitting.append(record)
        image = replayed(image, fitting)
        check_index(image)


def with_topics(count: int, partitions: int = 1) -> MetadataImage:
    made: list[MetadataRecord] = []
    for number in range(count):
        made.append(TopicRecord(f"t-{number}", topic_id(number)))
        made += [PartitionRecord(topic_id(number), index, (0, 1, 2), (0, 1, 2), 0) for index in range(partitions)]
    return replayed(EMPTY_IMAGE, made)


def test_a_record_beside_ten_thousand_topics_costs_its_own_size() -> None:
    image = with_topics(10_000)
    record = PartitionChangeRecord(topic_id(7), 0, isr=(1, 2), leader=1)
    after, copied = kept_bytes(lambda: replayed(image, [record]))
    assert copied < 15_000, "the shard that changed, in each of some maps: with its whole row it takes as much again"
    old, new = image.topics.index, after.topics.index
    assert new.in_sync_with(1) is old.in_sync_with(1)
    assert new.replicas is old.replicas
    assert after.topics.ids is image.topics.ids


def test_a_record_beside_ten_thousand_partitions_of_its_topic_costs_its_own_size() -> None:
    image = with_topics(1, 10_000)
    record = PartitionChangeRecord(topic_id(0), 9_999, isr=(1, 2), leader=1)
    after, copied = kept_bytes(lambda: replayed(image, [record]))
    assert copied < 24_000, "one chunk of neighbours: a further one takes 5,000"
    new = after.topics.by_id[topic_id(0)].partitions
    assert isinstance(new, PartitionTable)
    assert list(new) == list(range(10_000))


def test_a_table_of_many_partitions_is_a_mapping() -> None:
    parts = {i: PartitionImage(b"x", i, (0,), (0,), 0) for i in range(PLAIN_MAX * 3)}
    table = PartitionTable.of(parts)
    assert table == parts
    assert list(table.items()) == list(parts.items())
    assert list(table.values()) == list(parts.values())
    assert table.get(PLAIN_MAX * 3) is None
    assert -1 not in table


def test_a_set_of_partitions_has_one_order_and_finds_what_two_have_in_common() -> None:
    image = with_topics(40, 130)
    changes = [PartitionChangeRecord(topic_id(n), i, leader=-1) for n in (3, 9) for i in (0, 64, 129)]
    index = replayed(image, changes).topics.index
    found: list[PartitionKey] = list(index.leaderless.within(index.with_replica(2)))
    assert sorted(found) == sorted((topic_id(n), i) for n in (3, 9) for i in (0, 64, 129))
    assert found == list(index.leaderless)
    assert list(index.leaderless.of_topic(topic_id(9))) == [(topic_id(9), i) for i in (0, 64, 129)]
