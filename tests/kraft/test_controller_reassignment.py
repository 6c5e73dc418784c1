"""Replicas on the move: what a reassignment waits for, what it refuses, and where it ends, as pure decisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import ErrorCode
from kraft.controller.brokers import decide_registration, fence
from kraft.controller.policy import ControllerPolicy
from kraft.controller.reassignment import changes_where_moves_may_end
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.records import NO_LEADER, Cause, ConfigRecord, PartitionChangeRecord, ResourceType
from tests.kraft.decisions import (
    decide_alter_partition,
    decide_alter_partition_reassignments,
    decide_elect_leaders,
    decide_incremental_alter_configs,
    decide_list_partition_reassignments,
)
from tests.kraft.images import POLICY, alter_partition, beaten, partition_of, registration, with_topic
from wire.messages import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)

MIN_ISR = POLICY.min_insync_replicas


def reassigned(
    image: MetadataImage, replicas: list[int] | None, name: str = "t", index: int = 0, **changed: Any
) -> tuple[MetadataImage, ErrorCode]:
    """`replicas` None cancels."""
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=index, replicas=replicas)
    fields: dict[str, Any] = {"allow_replication_factor_change": True, **changed}
    request = AlterPartitionReassignmentsRequest(topics=[topic(name=name, partitions=[partition])], **fields)
    decision = decide_alter_partition_reassignments(image, request, POLICY)
    assert decision.reply.error_code == 0
    return replayed(image, decision.records), ErrorCode(decision.reply.responses[0].partitions[0].error_code)


def with_isr(image: MetadataImage, isr: list[int]) -> MetadataImage:
    request = alter_partition(image, partition_of(image), isr)
    return replayed(image, decide_alter_partition(image, request, 3, POLICY).records)


def fenced(image: MetadataImage, broker: int) -> MetadataImage:
    return replayed(image, fence(image, image.brokers[broker], POLICY, Cause.SESSION_EXPIRED))


def moving(image: MetadataImage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    partition = partition_of(image)
    return partition.replicas, partition.adding, partition.removing


def test_replicas_are_added_and_removed_in_the_commit_that_finds_all_new_ones_in_sync() -> None:
    image, code = reassigned(with_topic(brokers=5), [3, 4, 2])
    assert (code, moving(image)) == (ErrorCode.NONE, ((3, 4, 2, 0, 1), (3, 4), (0, 1)))
    image = with_isr(image, [0, 1, 2, 3])
    assert moving(image) == ((3, 4, 2, 0, 1), (3, 4), (0, 1))
    before = partition_of(image)
    request = alter_partition(image, before, [0, 1, 2, 3, 4])
    decision = decide_alter_partition(image, request, 3, POLICY)
    assert decision.reply.topics[0].partitions[0].error_code == ErrorCode.NEW_LEADER_ELECTED
    done = partition_of(replayed(image, decision.records))
    assert (done.replicas, done.isr, done.adding, done.removing) == ((3, 4, 2), (2, 3, 4), (), ())
    assert (done.leader, done.leader_epoch) == (3, before.leader_epoch + 1)


def test_fewer_replicas_at_once_where_enough_are_in_sync() -> None:
    image, code = reassigned(with_topic(), [1, 2])
    assert (code, moving(image)) == (ErrorCode.NONE, ((1, 2), (), ()))
    assert (partition_of(image).leader, partition_of(image).leader_epoch) == (1, 1)


def test_a_removal_waits_while_it_would_leave_too_few_in_sync() -> None:
    image = with_isr(with_topic(), [0, 2])
    image, code = reassigned(image, [0, 1])
    assert (code, moving(image)) == (ErrorCode.NONE, ((0, 1, 2), (), (2,)))
    assert partition_of(image).isr == (0, 2)
    image = with_isr(image, [0, 1, 2])
    assert (moving(image), partition_of(image).isr) == (((0, 1), (), ()), (0, 1))


def test_one_replica_becomes_three_without_a_starved_moment() -> None:
    """`min.insync.replicas` 2 does not hold for a partition that has only one replica until the others have come."""
    image, _ = reassigned(with_topic([0]), [0, 1, 2])
    assert partition_of(image).settled_replica_count == 1
    alone = with_isr(image, [0, 1])
    assert partition_of(with_isr(alone, [0])).elr == ()  # the leader alone commits, so nobody else is eligible
    image = with_isr(image, [0, 1, 2])
    assert (moving(image), partition_of(image).settled_replica_count) == (((0, 1, 2), (), ()), 3)
    image = fenced(fenced(image, 1), 2)
    assert partition_of(image).elr == (2,)


def test_a_reassignment_is_cancelled() -> None:
    image, _ = reassigned(with_topic(brokers=4), [3, 1, 2])
    image = with_isr(image, [0, 1, 2])
    image, code = reassigned(image, None)
    assert code is ErrorCode.NONE
    assert (sorted(moving(image)[0]), moving(image)[1:]) == ([0, 1, 2], ((), ()))
    assert reassigned(image, None)[1] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_cancelling_moves_the_leadership_back_from_a_new_replica() -> None:
    image, _ = reassigned(with_topic(brokers=5), [3, 4, 2])
    image = with_isr(image, [0, 1, 2, 3])
    for broker in (0, 1):
        image = fenced(image, broker)
    image = with_isr(image, [2, 3])
    elect = ElectLeadersRequest(election_type=0, topic_partitions=None)
    image = replayed(image, decide_elect_leaders(image, elect, POLICY).records)
    assert partition_of(image).leader == 3
    assert reassigned(image, None)[1] is ErrorCode.INVALID_REPLICATION_ASSIGNMENT  # it would leave broker 2 alone
    image, _reply = beaten(image, 0)
    image = with_isr(image, [0, 2, 3])
    image, code = reassigned(image, None)
    assert (code, set(partition_of(image).isr)) == (ErrorCode.NONE, {0, 2})
    assert partition_of(image).leader in (0, 2)


def test_an_override_takes_the_unwanted_new_replicas_out_and_can_end_at_once() -> None:
    image, _ = reassigned(with_topic(brokers=5), [3, 4, 2])
    image = with_isr(image, [0, 1, 2, 3])
    image, code = reassigned(image, [0, 1, 3])
    assert (code, moving(image)) == (ErrorCode.NONE, ((0, 1, 3), (), ()))
    image, _ = reassigned(image, [4, 2, 0])
    back, code = reassigned(image, [0, 1, 3])
    assert (code, moving(back)) == (ErrorCode.NONE, ((0, 1, 3), (), ()))


def test_who_alone_holds_what_was_committed_is_not_taken_away() -> None:
    image, _ = reassigned(with_topic([0], brokers=4), [1, 2])
    image = fenced(with_isr(image, [0, 1]), 0)
    assert partition_of(image).isr == (1,)
    assert reassigned(image, None)[1] is ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    image = fenced(image, 1)
    assert (partition_of(image).leader, partition_of(image).elr) == (NO_LEADER, (1,))
    assert reassigned(image, None)[1] is ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    assert reassigned(image, [0, 2])[1] is ErrorCode.INVALID_REPLICATION_ASSIGNMENT
    assert reassigned(image, [1])[1] is ErrorCode.NONE
    lone = fenced(with_topic([0], brokers=2), 0)
    lone, code = reassigned(lone, [1])
    assert (code, moving(lone), partition_of(lone).leader) == (ErrorCode.NONE, ((1, 0), (1,), (0,)), NO_LEADER)


def test_an_eligible_replica_stays_until_enough_are_in_sync() -> None:
    """The only one in sync may have lost power a moment ago: then the eligible one alone holds everything."""
    image = with_isr(with_topic(brokers=4), [0, 1])
    image = fenced(image, 1)
    assert (partition_of(image).isr, partition_of(image).elr) == ((0,), (1,))
    overridden, _ = reassigned(image, [0, 3])
    for before in (image, overridden):
        pending, code = reassigned(before, [0, 2])
        assert (code, moving(pending)) == (ErrorCode.NONE, ((0, 2, 1), (), (1,)))
        assert partition_of(pending).elr == (1,)
        assert moving(with_isr(pending, [0, 2])) == ((0, 2), (), ())
    nobody = fenced(image, 0)
    pending, code = reassigned(nobody, [0, 2])
    assert (code, moving(pending)) == (ErrorCode.NONE, ((0, 2, 1), (), (1,)))
    assert set(partition_of(pending).elr) == {0, 1}


def test_a_removal_that_waited_ends_when_fewer_have_to_be_in_sync() -> None:
    image = with_isr(with_topic(), [0, 2])
    image, _ = reassigned(image, [0, 1])
    assert moving(image) == ((0, 1, 2), (), (2,))
    request = IncrementalAlterConfigsRequest
    change = request.AlterConfigsResource.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")
    resource = request.AlterConfigsResource(resource_type=int(ResourceType.TOPIC), resource_name="t", configs=[change])
    decision = decide_incremental_alter_configs(image, request(resources=[resource], validate_only=False), POLICY)
    after = replayed(image, decision.records)
    assert (moving(after), partition_of(after).isr) == (((0, 1), (), ()), (0,))
    # A controller that is restarted with other settings finds the same.
    relaxed = ControllerPolicy(min_insync_replicas=1)
    (record,) = changes_where_moves_may_end(image, relaxed, [(partition_of(image).topic_id, 0), (bytes(16), 0)])
    assert partition_of(replayed(image, [record])) == partition_of(after)
    assert changes_where_moves_may_end(image, POLICY, image.topics.index.moving) == []


@pytest.mark.parametrize("replicas", [[], [0, 0], [0, 9], [-1]])
def test_impossible_replicas_are_refused(replicas: list[int]) -> None:
    image = with_topic()
    after, code = reassigned(image, replicas)
    assert (code, after) == (ErrorCode.INVALID_REPLICATION_ASSIGNMENT, image)


def test_unknown_partitions_and_another_factor_are_refused() -> None:
    image = with_topic()
    assert reassigned(image, [0], "x")[1] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reassigned(image, [0], index=7)[1] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    same: dict[str, Any] = {"allow_replication_factor_change": False}
    assert reassigned(image, [0, 1], **same)[1] is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassigned(image, [2, 1, 0], **same)[1] is ErrorCode.NONE


def test_what_runs_is_listed() -> None:
    image, _ = reassigned(with_topic(brokers=4), [3, 1, 2])
    request = ListPartitionReassignmentsRequest
    for topics in (None, [request.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 5])]):
        listed = decide_list_partition_reassignments(image, request(topics=topics)).reply.topics
        assert [(topic.name, len(topic.partitions)) for topic in listed] == [("t", 1)]
        row = listed[0].partitions[0]
        assert (row.replicas, row.adding_replicas, row.removing_replicas) == ([3, 1, 2, 0], [3], [0])
    other = [request.ListPartitionReassignmentsTopics(name="x", partition_indexes=[0])]
    assert decide_list_partition_reassignments(image, request(topics=other)).reply.topics == []
    assert decide_list_partition_reassignments(with_topic(), request(topics=None)).reply.topics == []


def elected(image: MetadataImage, kind: int, partitions: list[int] | None) -> tuple[MetadataImage, dict[int, int]]:
    topics = None
    if partitions is not None:
        topics = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=partitions)]
    decision = decide_elect_leaders(image, ElectLeadersRequest(election_type=kind, topic_partitions=topics), POLICY)
    results = decision.reply.replica_election_results
    return replayed(image, decision.records), {
        row.partition_id: row.error_code for topic in results for row in topic.partition_result
    }


def test_the_preferred_leader_is_elected() -> None:
    image = fenced(with_topic(), 0)
    assert elected(image, 0, [0, 4])[1] == {
        0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        4: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    image, _reply = beaten(image, 0)
    image = with_isr(image, [0, 1, 2])
    assert partition_of(image).leader == 1
    image, codes = elected(image, 0, None)
    assert (codes, partition_of(image).leader) == ({0: 0}, 0)
    assert elected(image, 0, None)[1] == {}
    assert elected(image, 0, [0])[1] == {0: ErrorCode.ELECTION_NOT_NEEDED}


def test_an_unclean_election_is_for_partitions_without_a_leader() -> None:
    image = with_isr(with_topic(min_insync_replicas="1"), [0])
    assert elected(image, 1, [0])[1] == {0: ErrorCode.ELECTION_NOT_NEEDED}
    for broker in (1, 2, 0):
        image = fenced(image, broker)
    assert elected(image, 1, [0])[1] == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    image = replayed(image, decide_registration(image, registration(0, 9), POLICY, has_session=False).records)
    image, _reply = beaten(image, 2)
    image, codes = elected(image, 1, [0])
    assert (codes, partition_of(image).leader, partition_of(image).isr) == ({0: 0}, 2, (2,))


# -- random histories

BROKERS = 5
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reassign"), st.permutations(range(BROKERS)), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.none(), st.none()),
        st.tuples(st.just("isr"), st.sets(st.integers(0, BROKERS - 1)), st.none()),
        st.tuples(st.just("fence"), st.integers(0, BROKERS - 1), st.none()),
        st.tuples(st.just("lose"), st.integers(0, BROKERS - 1), st.integers(0, 250)),
        st.tuples(st.just("return"), st.integers(0, BROKERS - 1), st.none()),
        st.tuples(st.just("min isr"), st.integers(1, 3), st.none()),
    ),
    max_size=25,
)


def safe(before: PartitionImage, after: PartitionImage, min_isr: int) -> None:
    """No reassignment takes an in-sync replica away where too few are left, nor the last who can lead."""
    lost = set(before.isr) - set(after.isr)
    if lost:
        assert len(after.isr) >= min(min_isr, after.settled_replica_count)
    if before.isr:
        assert after.leader != NO_LEADER
    for members in (after.isr, after.elr, after.adding, after.removing):
        assert set(members) <= set(after.replicas)


def whole_count(partition: PartitionImage) -> int:
    """How many replicas are known to hold all that was committed."""
    return len({*partition.isr, *partition.elr})


def taken(image: MetadataImage, step: tuple[str, Any, Any]) -> MetadataImage:
    kind, what, more = step
    partition = partition_of(image)
    if kind == "reassign":
        return reassigned(image, list(what[:more]))[0]
    if kind == "cancel":
        return reassigned(image, None)[0]
    if kind == "isr" and partition.has_leader:
        isr = sorted({partition.leader} | {b for b in what if b in partition.replicas and image.is_active(b)})
        return with_isr(image, isr)
    if kind == "fence":
        return fenced(image, what)
    if kind == "lose":
        decision = decide_registration(image, registration(what, more), POLICY, has_session=False)
        return replayed(image, decision.records)
    if kind == "return":
        return beaten(image, what)[0]
    return image


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps)
def test_any_history_stays_safe_and_ends_at_its_target(history: list[tuple[str, Any, Any]]) -> None:
    image = with_topic(brokers=BROKERS)
    min_isr, target = MIN_ISR, {0, 1, 2}
    for step in history:
        before = partition_of(image)
        if step[0] == "min isr":
            min_isr = step[1]
            image = replayed(image, [ConfigRecord(ResourceType.TOPIC, "t", "min.insync.replicas", str(min_isr))])
            continue
        after_image = taken(image, step)
        after = partition_of(after_image)
        if step[0] in ("reassign", "cancel"):
            safe(before, after, min_isr)
            if step[0] == "reassign" and after != before:
                target = set(step[1][: step[2]])
            elif step[0] == "cancel" and after != before:
                target = set(before.replicas) - set(before.adding)
        elif step[0] == "isr":
            taken_out = set(before.replicas) - set(after.replicas)
            if taken_out:
                assert set(before.adding) <= set(after.isr)
                assert len(after.isr) >= min(min_isr, len(after.replicas)) or not taken_out & set(before.isr)
        if step[0] in ("reassign", "cancel", "isr"):
            assert whole_count(after) >= min(whole_count(before), min_isr, after.settled_replica_count)
        image = after_image
    for broker in range(BROKERS):
        image = beaten(image, broker)[0]
    partition = partition_of(image)
    if not partition.has_leader:  # all who held it were lost: the operator gives up what they had
        image, _codes = elected(image, 1, [0])
    while set((partition := partition_of(image)).isr) != set(partition.replicas) or partition.is_reassigning:
        image = with_isr(image, list(partition.replicas))
    assert set(partition.replicas) == target
    assert (partition.adding, partition.removing, partition.elr) == ((), (), ())


def test_the_metadata_log_tells_why_replicas_changed() -> None:
    image = with_topic(brokers=4)
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition(partition_index=0, replicas=[3, 1, 2])
    request = AlterPartitionReassignmentsRequest(
        topics=[topic(name="t", partitions=[partition])], allow_replication_factor_change=True
    )
    (record,) = decide_alter_partition_reassignments(image, request, POLICY).records
    assert isinstance(record, PartitionChangeRecord)
    assert record.cause is Cause.REASSIGNMENT_STARTED
