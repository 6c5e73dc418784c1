"""Creating, growing and deleting topics: replies and error codes as Apache Kafka gives them."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.controller.placement import ReplicaPlacer, UsableBroker
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import ConfigRecord, ResourceType, TopicRecord
from kraft.topic_names import AUDIT_TOPIC, GROUP_TOPIC, TIER_TOPIC, check_topic_name, colliding_name
from tests.kraft.decisions import decide_create_partitions, decide_create_topics, decide_delete_topics
from tests.kraft.images import POLICY, beaten, create_topics, new_topic, rng, with_brokers
from wire.messages import CreatePartitionsRequest, DeleteTopicsRequest, schema_uuid


def create(image: MetadataImage, *topics: Any, validate_only: bool = False) -> tuple[MetadataImage, dict[str, Any]]:
    request = create_topics(*topics, validate_only=validate_only)
    decision = decide_create_topics(image, request, POLICY, rng(image.offset))
    return replayed(image, decision.records), {t.name: t for t in decision.reply.topics}


def code_of(topic: Any, image: MetadataImage | None = None) -> ErrorCode:
    _image, results = create(image or with_brokers(3), topic)
    return ErrorCode(results[topic.name].error_code)


def test_defaults_fill_in_what_the_request_leaves_open() -> None:
    image, results = create(with_brokers(3), new_topic("t"))
    assert (results["t"].error_code, results["t"].num_partitions, results["t"].replication_factor) == (0, 1, 3)
    topic = image.topics.get("t")
    assert topic is not None
    assert results["t"].topic_id.bytes == topic.topic_id
    partition = topic.partitions[0]
    assert (sorted(partition.replicas), partition.isr, partition.leader) == (
        [0, 1, 2],
        partition.replicas,
        partition.replicas[0],
    )


def test_configs_are_kept_and_described_with_their_source() -> None:
    image, results = create(with_brokers(3), new_topic("t", configs={"retention.ms": "1000"}))
    assert image.configs.of(ResourceType.TOPIC, "t") == {"retention.ms": "1000"}
    described = {c.name: (c.value, c.config_source) for c in results["t"].configs}
    assert described["retention.ms"] == ("1000", 1)
    assert described["cleanup.policy"] == ("delete", 5)


def test_a_cordoned_broker_gets_new_replicas_only_where_there_are_too_few_others() -> None:
    image = replayed(with_brokers(4), [ConfigRecord(ResourceType.BROKER, "1", "tidelog.broker.cordoned", "true")])
    image, _ = create(image, new_topic("a", 12, 3), new_topic("b", 4, 4))
    assert not any(1 in partition.replicas for partition in image.topics.by_name["a"].partitions.values())
    assert all(partition.replicas[3] == 1 for partition in image.topics.by_name["b"].partitions.values())


def test_validate_only_changes_nothing() -> None:
    image = with_brokers(3)
    after, results = create(image, new_topic("t", 4), validate_only=True)
    assert results["t"].error_code == 0
    assert after == image


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new_topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (new_topic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (new_topic("t", -2), ErrorCode.INVALID_PARTITIONS),
        (new_topic("t", 10_001), ErrorCode.POLICY_VIOLATION),
        (new_topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("t", 1, -1, [[0, 1]]), ErrorCode.INVALID_REQUEST),
        (new_topic("t", -1, -1, [[0, 0]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (new_topic("t", -1, -1, [[0, 9]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (new_topic("t", -1, -1, [[]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (new_topic("t", -1, -1, [[0, 1], [0]]), ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        (new_topic("t", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (new_topic("t", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (new_topic("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (new_topic("t", configs={"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
        (new_topic("t", configs={"remote.storage.enable": "false"}), ErrorCode.NONE),
        (
            new_topic("t", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}),
            ErrorCode.INVALID_CONFIG,
        ),
        (new_topic("t", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"}), ErrorCode.NONE),
        (new_topic("x" * 249), ErrorCode.NONE),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else str(value.name)[:12],
)
def test_what_may_be_created(topic: Any, code: ErrorCode) -> None:
    assert code_of(topic) is code


def test_a_topic_twice_in_a_request_is_refused_and_the_rest_goes_on() -> None:
    image, results = create(with_brokers(3), new_topic("a"), new_topic("b"), new_topic("a"))
    assert results["a"].error_code == ErrorCode.INVALID_REQUEST
    assert results["b"].error_code == 0
    assert list(image.topics.by_name) == ["b"]


def test_an_existing_topic_and_names_that_collide() -> None:
    image, _ = create(with_brokers(3), new_topic("a.b_c"))
    assert code_of(new_topic("a.b_c"), image) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert code_of(new_topic("a_b.c"), image) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(new_topic("a-b-c"), image) is ErrorCode.NONE
    _, together = create(with_brokers(3), new_topic("x.y"), new_topic("x_y"))
    assert (together["x.y"].error_code, together["x_y"].error_code) == (0, ErrorCode.INVALID_TOPIC_EXCEPTION)


def test_a_name_of_many_periods_is_compared_with_all_others() -> None:
    name, other = ".".join("abcdefghijkl"), "_".join("abcdefghijkl")
    assert at_once(colliding_name(name, {other}.__contains__, lambda: [other])) == other
    assert at_once(colliding_name(name, set().__contains__, lambda: ["z"])) is None
    check_topic_name(name)


def test_a_manual_assignment_keeps_fenced_brokers_out_of_the_isr() -> None:
    image, _ = beaten(with_brokers(3), 0, want_fence=True)
    after, results = create(image, new_topic("t", -1, -1, [[0, 2]]))
    assert results["t"].error_code == 0
    partition = after.partition_by_name("t", 0)
    assert partition is not None
    assert (partition.replicas, partition.isr, partition.leader) == ((0, 2), (2,), 2)
    assert code_of(new_topic("u", -1, -1, [[0]]), image) is ErrorCode.INVALID_REPLICATION_ASSIGNMENT


def grow(image: MetadataImage, name: str, count: int, assignments: list[list[int]] | None = None) -> Any:
    request = CreatePartitionsRequest
    wanted = request.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [request.CreatePartitionsTopic.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
    )
    message = request(topics=[wanted], timeout_ms=1, validate_only=False)
    return decide_create_partitions(image, message, POLICY, rng())


def test_partitions_are_added_with_the_topics_own_factor() -> None:
    image, _ = create(with_brokers(3), new_topic("t", 2, 2))
    decision = grow(image, "t", 5)
    assert decision.reply.results[0].error_code == 0
    topic = replayed(image, decision.records).topics.get("t")
    assert topic is not None
    assert [len(p.replicas) for p in topic.partitions.values()] == [2] * 5


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 100_000, None, ErrorCode.INVALID_PARTITIONS),
        ("u", 2, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 4, [[0, 1]], ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        ("t", 3, [[0]], ErrorCode.INVALID_REPLICATION_ASSIGNMENT),
        ("t", 3, [[1, 0]], ErrorCode.NONE),
        (GROUP_TOPIC, 4, None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_may_be_added(name: str, count: int, assignments: list[list[int]] | None, code: ErrorCode) -> None:
    image, _ = create(with_brokers(3), new_topic("t", 2, 2), new_topic(GROUP_TOPIC, 2, 2))
    assert grow(image, name, count, assignments).reply.results[0].error_code == code


def delete(image: MetadataImage, states: list[tuple[str | None, bytes | None]], policy: Any = POLICY) -> Any:
    topics = [
        DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None if raw is None else schema_uuid(raw))
        for name, raw in states
    ]
    return decide_delete_topics(image, DeleteTopicsRequest(topics=topics, topic_names=[], timeout_ms=1), policy)


def test_topics_are_deleted_by_name_and_by_id_with_their_configs() -> None:
    image, _ = create(with_brokers(3), new_topic("a", configs={"retention.ms": "1"}), new_topic("b"), new_topic("c"))
    b = image.topics.by_name["b"].topic_id
    decision = delete(image, [("a", None), (None, b)])
    assert [(r.name, r.error_code) for r in decision.reply.responses] == [("a", 0), ("b", 0)]
    after = replayed(image, decision.records)
    assert list(after.topics.by_name) == ["c"]
    assert list(after.configs) == []


def test_an_internal_topic_is_deleted_as_any_other() -> None:
    image, _ = create(with_brokers(3), new_topic(GROUP_TOPIC))
    decision = delete(image, [(GROUP_TOPIC, None)])
    assert decision.reply.responses[0].error_code == ErrorCode.NONE
    assert GROUP_TOPIC not in replayed(image, decision.records).topics


@pytest.mark.parametrize("name", [AUDIT_TOPIC, TIER_TOPIC])
def test_what_the_cluster_could_not_do_without_is_not_deleted(name: str) -> None:
    image, _ = create(with_brokers(3), new_topic(name))
    topic_id = image.topics.by_name[name].topic_id
    decision = delete(image, [(name, None), (None, topic_id)])
    assert [row.error_code for row in decision.reply.responses] == [ErrorCode.POLICY_VIOLATION] * 2
    assert not decision.records


def test_what_cannot_be_deleted() -> None:
    image, _ = create(with_brokers(3), new_topic("a"))
    topic_id = image.topics.by_name["a"].topic_id
    wanted = [("x", None), (None, bytes([5] * 16)), ("a", topic_id), (None, None), ("a", None), (None, topic_id)]
    codes = [ErrorCode(r.error_code) for r in delete(image, wanted).reply.responses]
    assert codes == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    refused = delete(image, [("a", None)], ControllerPolicy(delete_topic_enable=False)).reply
    assert refused.responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


def test_a_name_is_free_again_in_the_commit_that_deletes_it() -> None:
    image, _ = create(with_brokers(3), new_topic("a"))
    records = delete(image, [("a", None)]).records
    after = replayed(image, [*records, TopicRecord("a", bytes([3] * 16))])
    assert after.topics.by_name["a"].topic_id == bytes([3] * 16)


# -- placement


def brokers(racks: list[str | None], fenced: tuple[int, ...] = ()) -> list[UsableBroker]:
    return [UsableBroker(i, rack, i in fenced) for i, rack in enumerate(racks)]


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks: list[str | None] = ["a", "a", "b", "b", "b", "c"]
    for replicas in ReplicaPlacer(brokers(racks), rng()).place(60, 3):
        assert len({racks[r] for r in replicas}) == 3
    for replicas in ReplicaPlacer(brokers(racks), rng()).place(60, 5):
        assert {racks[r] for r in replicas} == {"a", "b", "c"}
        assert len(set(replicas)) == 5


@pytest.mark.parametrize("racks", [[None] * 3, ["a", "b", "c"], [None] * 6, ["a", "a", "b", "b", "c", "c"]])
def test_leaders_and_replicas_are_spread_evenly(racks: list[str | None]) -> None:
    placed = ReplicaPlacer(brokers(racks), rng()).place(30 * len(racks), 3)
    leaders = [sum(p[0] == b for p in placed) for b in range(len(racks))]
    hosted = [sum(b in p for p in placed) for b in range(len(racks))]
    assert leaders == [30] * len(racks)
    assert max(hosted) - min(hosted) <= len(racks)


def test_the_leaders_of_a_lost_broker_do_not_all_go_to_one_other() -> None:
    placed = ReplicaPlacer(brokers([None] * 4), rng()).place(400, 3)
    seconds = [p[1] for p in placed if p[0] == 0]
    assert all(seconds.count(b) > 15 for b in (1, 2, 3))


def test_fenced_brokers_are_used_last_and_never_lead() -> None:
    placed = ReplicaPlacer(brokers(["a", "b", "c", "a"], fenced=(1,)), rng()).place(40, 3)
    assert all(1 not in p for p in placed)
    placed = ReplicaPlacer(brokers(["a", "b", "c"], fenced=(1,)), rng()).place(40, 3)
    assert all(p[2] == 1 for p in placed)


def test_too_few_brokers() -> None:
    with pytest.raises(ProtocolError, match="larger than the 2"):
        ReplicaPlacer(brokers([None] * 2), rng()).place(1, 3)
    with pytest.raises(ProtocolError, match="fenced"):
        ReplicaPlacer(brokers([None] * 2, fenced=(0, 1)), rng()).place(1, 1)
    with pytest.raises(ProtocolError):
        ReplicaPlacer([], rng()).place(1, 1)
