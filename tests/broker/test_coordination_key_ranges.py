"""Cells own ranges of the internal topics: no key ever changes its partition but by a move, and what a cell keeps is on
its own brokers."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordination.placement import keeping_partition, partition_for
from common.errors import ErrorCode
from common.pacing import at_once
from kraft.controller.key_ranges import range_step
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.difference import differing
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.records import BrokerRegistrationChangeRecord, FeatureLevelRecord, RegisterBrokerRecord, RemoveTopicRecord
from kraft.topic_names import CLIENT_KEY_TOPICS, GROUP_TOPIC
from tests.kraft.decisions import decide_alter_partition_reassignments
from tests.kraft.images import POLICY, new_cluster, new_topic
from tests.kraft.tenants import CELLS, cells_of_three, created, with_topics
from tests.kraft.test_controller_tenant_moves import caught_up
from wire.messages import AlterPartitionReassignmentsRequest

PARTITIONS = 5
KEYS = [f"group-{number}" for number in range(12)]


def with_group_topic(image: MetadataImage, factor: int = 3) -> MetadataImage:
    image, (result,) = with_topics(image, new_topic(GROUP_TOPIC, PARTITIONS, factor))
    assert result.error_code == 0, result.error_message
    return image


def settled(image: MetadataImage, rng: random.Random) -> MetadataImage:
    """Until no step changes anything, with every reassignment caught up on the way."""
    for _ in range(200):
        step = at_once(range_step(image, POLICY, rng))
        image = replayed(image, step.records)
        running = [partition for partition in image.topics.partitions() if partition.is_reassigning]
        if not step.records and not running:
            return image
        for partition in running:
            image = caught_up(image, partition)
    raise AssertionError("the ranges never settle")


def homes(image: MetadataImage) -> dict[str, set[int]]:
    """Cell → the brokers on which its range's replicas are."""
    topic = image.topics.by_name[GROUP_TOPIC]
    return {
        held.cell: {r for index in range(held.first, held.end) for r in topic.partitions[index].replicas}
        for held in topic.ranges
    }


def registered(image: MetadataImage, broker: int, cell: str) -> MetadataImage:
    record = RegisterBrokerRecord(broker, bytes([broker]) * 16, (), f"rack-{broker % 3}", fenced=False, cell=cell)
    return replayed(image, [record])


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_key_changes_its_partition_whatever_cells_come(data: st.DataObject) -> None:
    """Operators' keys and tenants' ones of both topics, used before or after a cell appeared, a broker changed cells or
    went, and before or after the other topic."""
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    image = new_cluster()
    for broker in range(3):
        image = registered(image, broker, data.draw(st.sampled_from(["default", "b"])))
    used: dict[tuple[str, str], int] = {}
    for step in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(["broker", "fence", "topic", "tenant", "range", "range", "use", "use"]))
        if act == "broker":
            cell = data.draw(st.sampled_from(["default", "a", "b", "c"]))
            image = registered(image, data.draw(st.integers(0, 9)), cell)
        elif act == "fence" and len(image.brokers) > 4:
            broker = data.draw(st.sampled_from(sorted(image.brokers)))
            epoch = image.brokers[broker].epoch
            image = replayed(image, [BrokerRegistrationChangeRecord(broker, epoch, fenced=data.draw(st.booleans()))])
        elif act == "topic" and (name := data.draw(st.sampled_from(CLIENT_KEY_TOPICS))) not in image.topics:
            image, _ = with_topics(image, new_topic(name, PARTITIONS, data.draw(st.sampled_from([1, 3]))))
        elif act == "tenant":
            image, _ = created(image, f"t{step}", seed=step)
        elif act == "range":
            image = replayed(image, at_once(range_step(image, POLICY, rng)).records)
        elif act == "use":
            owners = ["", *(tenant.prefix for tenant in image.tenants.values())]
            key = data.draw(st.sampled_from(owners)) + data.draw(st.sampled_from(KEYS))
            name = data.draw(st.sampled_from(CLIENT_KEY_TOPICS))
            index = keeping_partition(image, name, key)
            if index is not None:
                used.setdefault((name, key), index)
        assert {(name, key): keeping_partition(image, name, key) for name, key in used} == used
    topics = [topic for name in CLIENT_KEY_TOPICS if (topic := image.topics.get(name)) is not None]
    assert len({bool(topic.ranges) for topic in topics}) < 2, "topics are divided together"
    for topic in topics:
        covered = [index for held in topic.ranges for index in range(held.first, held.end)]
        assert covered == list(topic.partitions if topic.ranges else ()), "ranges are disjoint, and cover the topic"
        assert not topic.ranges or topic.ranges[0].count == PARTITIONS
    assert decode_snapshot(encode_snapshot(image)) == image


@settings(max_examples=30, deadline=None)
@given(st.permutations(["topic", "west"]), st.integers(0, 1 << 30))
def test_each_cells_groups_are_on_its_own_brokers(order: list[str], seed: int) -> None:
    """Whether the second cell or the topic comes first, and although replicas were spread over all brokers before."""
    rng = random.Random(seed)
    image = cells_of_three({"east": (0, 1, 2)})
    for event in order:
        if event == "topic":
            image = with_group_topic(image)
        else:
            for broker in CELLS["west"]:
                image = registered(image, broker, "west")
    image = settled(image, rng)
    assert homes(image) == {"east": {0, 1, 2}, "west": {3, 4, 5}}
    image = registered(registered(image, 2, "west"), 5, "east")  # they change places
    image = settled(image, rng)
    assert homes(image) == {"east": {0, 1, 5}, "west": {2, 3, 4}}


def test_a_tenant_whose_cell_is_there_keeps_its_groups_in_it_and_operators_in_the_first() -> None:
    image = settled(with_group_topic(cells_of_three()), random.Random(1))
    image, reply = created(image, "w", cell="west")
    image, other = created(image, "e", cell="east")
    for key in KEYS:
        mine = keeping_partition(image, GROUP_TOPIC, f"{reply.tenant_id}_{key}")
        assert mine == PARTITIONS + partition_for(f"{reply.tenant_id}_{key}", PARTITIONS)
        theirs = keeping_partition(image, GROUP_TOPIC, f"{other.tenant_id}_{key}")
        assert theirs is not None
        assert theirs < PARTITIONS
        assert keeping_partition(image, GROUP_TOPIC, key) == partition_for(key, PARTITIONS)


def test_one_cell_alone_is_as_it_ever_was() -> None:
    image = with_group_topic(cells_of_three({"east": (0, 1, 2)}))
    image, reply = created(image, "e", cell="east")
    assert not at_once(range_step(image, POLICY, random.Random(1))).records
    assert not image.topics.by_name[GROUP_TOPIC].ranges
    for key in (*KEYS, f"{reply.tenant_id}_g"):
        assert keeping_partition(image, GROUP_TOPIC, key) == partition_for(key, PARTITIONS)


def test_a_cell_with_too_few_live_brokers_waits_for_its_range_and_its_tenants_with_it() -> None:
    image = with_group_topic(cells_of_three({"east": (0, 1, 2), "west": (3,)}))
    assert [held.cell for held in image.topics.by_name[GROUP_TOPIC].ranges] == ["east"]
    lone = created(image, "w", cell="west")[1]
    assert lone.error_code == ErrorCode.POLICY_VIOLATION
    image = registered(registered(image, 4, "west"), 5, "west")
    image, reply = created(image, "w", cell="west")
    assert keeping_partition(image, GROUP_TOPIC, f"{reply.tenant_id}_g") is None
    image = settled(image, random.Random(1))
    assert keeping_partition(image, GROUP_TOPIC, f"{reply.tenant_id}_g") in range(PARTITIONS, 2 * PARTITIONS)


def test_before_all_nodes_know_of_ranges_there_are_none() -> None:
    image = replayed(cells_of_three(), [FeatureLevelRecord("tidelog.version", 0)])
    image = with_group_topic(image)
    assert not at_once(range_step(image, POLICY, random.Random(1))).records
    assert not image.topics.by_name[GROUP_TOPIC].ranges


def test_an_operator_cannot_take_a_range_out_of_its_cell() -> None:
    image = settled(with_group_topic(cells_of_three()), random.Random(1))
    asked = AlterPartitionReassignmentsRequest.ReassignableTopic

    def code(index: int, *replicas: int) -> Any:
        row = asked.ReassignablePartition(partition_index=index, replicas=list(replicas))
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=1, allow_replication_factor_change=True, topics=[asked(name=GROUP_TOPIC, partitions=[row])]
        )
        decision = decide_alter_partition_reassignments(image, request, POLICY)
        return decision.reply.responses[0].partitions[0].error_code

    assert code(0, 0, 1, 3) == ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    assert code(PARTITIONS, 0, 3, 4) == ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    assert code(0, 2, 1, 0) == code(PARTITIONS, 5, 4, 3) == ErrorCode.NONE


def test_ranges_go_with_their_topic_and_deltas_name_what_changed() -> None:
    image = with_group_topic(cells_of_three({"east": (0, 1, 2)}))
    grown = image
    for broker in CELLS["west"]:
        grown = registered(grown, broker, "west")
    topic = image.topics.by_name[GROUP_TOPIC]
    divided = replayed(grown, at_once(range_step(grown, POLICY, random.Random(1))).records)
    assert list(at_once(differing(grown, divided)).ranges_changed) == [topic.topic_id]
    delta = MetadataDelta(divided)
    delta.replay(RemoveTopicRecord(topic.topic_id, GROUP_TOPIC))
    gone = delta.image()
    assert not delta.ranges_changed
    again = with_group_topic(gone)
    assert [held.count for held in again.topics.by_name[GROUP_TOPIC].ranges] == [PARTITIONS] * 2
