"""Brokers that are put aside: who leads then, who is in sync, and what the metadata keeps of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode
from common.pacing import at_once
from kraft.audit.metadata_audit import MetadataAudit
from kraft.batches import Batch, BatchHeader
from kraft.controller.broker_health import endangered, health_records, held_up
from kraft.controller.brokers import fence
from kraft.controller.elections import changes_where_brokers_are_unfit
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.image.topics import TopicImage
from kraft.records import Cause, FeatureLevelRecord, Health, HealthState, PartitionChangeRecord
from tests.kraft.decisions import changes_to_preferred_leaders, decide_alter_partition, decide_create_topics
from tests.kraft.images import (
    POLICY,
    alter_partition,
    beaten,
    create_topics,
    new_topic,
    partition_of,
    registered,
    rng,
    with_topic,
)

DEMOTED = Health(HealthState.DEMOTED, Cause.NO_CLIENT_TRAFFIC, 7, "no frame for 30 s")
SLOW = Health(HealthState.SLOW, Cause.SLOWER_THAN_PEERS, 7, "p99 400 ms, peers 3 ms")
BACK = Health(cause=Cause.HEALTH_IS_BACK)


def put(image: MetadataImage, broker: int, health: Health, policy: ControllerPolicy = POLICY) -> MetadataImage:
    return replayed(image, health_records(image, image.brokers[broker], policy, health))


def looked_at(image: MetadataImage, policy: ControllerPolicy = POLICY) -> MetadataImage:
    """After a look at what others may take over."""
    keys = [(p.topic_id, p.partition) for p in image.topics.partitions()]
    return replayed(image, changes_where_brokers_are_unfit(image, policy, keys))


def isr_asked(image: MetadataImage, isr: list[int]) -> int:
    asked = decide_alter_partition(image, alter_partition(image, partition_of(image), isr), 3, POLICY)
    code: int = asked.reply.topics[0].partitions[0].error_code
    return code


def test_a_demoted_leader_hands_over_and_stays_in_sync() -> None:
    before = with_topic()
    after = partition_of(put(before, 0, DEMOTED))
    assert (after.leader, after.isr) == (1, (0, 1, 2))
    assert after.leader_epoch == partition_of(before).leader_epoch + 1


def test_a_demoted_follower_changes_nothing() -> None:
    before = with_topic()
    assert partition_of(put(before, 1, DEMOTED)) == partition_of(before)


def test_a_slow_broker_leaves_leadership_and_isr_and_joins_none_until_it_is_well() -> None:
    image = put(with_topic(), 0, SLOW)
    after = partition_of(image)
    assert (after.leader, after.isr, after.elr, after.replicas) == (1, (1, 2), (), (0, 1, 2))
    assert isr_asked(image, [0, 1, 2]) == ErrorCode.INELIGIBLE_REPLICA
    assert isr_asked(put(image, 0, BACK), [0, 1, 2]) == ErrorCode.NONE


def test_a_slow_broker_stays_in_an_isr_that_needs_it_but_does_not_lead() -> None:
    after = partition_of(put(with_topic(min_insync_replicas="3"), 0, SLOW))
    assert (after.leader, after.isr) == (1, (0, 1, 2))


def test_a_slow_broker_may_join_an_isr_that_can_commit_nothing() -> None:
    image = put(with_topic(), 0, SLOW)
    topic_id = partition_of(image).topic_id
    alone = replayed(image, [PartitionChangeRecord(topic_id, 0, isr=(1,))])
    assert isr_asked(alone, [0, 1]) == ErrorCode.NONE
    whole = replayed(alone, [PartitionChangeRecord(topic_id, 0, isr=(0, 1, 2))])
    assert partition_of(looked_at(whole)).isr == (1, 2), "it leaves again when the others suffice"


def test_the_only_replica_goes_on_leading() -> None:
    image = with_topic([0], min_insync_replicas="1")
    for health in (DEMOTED, SLOW):
        assert partition_of(put(image, 0, health)) == partition_of(image)


def test_elections_and_returns_pass_over_it() -> None:
    image = put(with_topic(), 1, DEMOTED)
    after = partition_of(replayed(image, fence(image, image.brokers[0], POLICY, Cause.SESSION_EXPIRED)))
    assert after.leader == 2
    image = put(with_topic(), 0, DEMOTED)
    assert changes_to_preferred_leaders(image, POLICY, 10) == []
    assert [r.leader for r in changes_to_preferred_leaders(put(image, 0, BACK), POLICY, 10)] == [0]


def made(image: MetadataImage, name: str, partitions: int, factor: int) -> TopicImage:
    decision = decide_create_topics(image, create_topics(new_topic(name, partitions, factor)), POLICY, rng())
    assert decision.reply.topics[0].error_code == 0
    topic = replayed(image, decision.records).topics.get(name)
    assert topic is not None
    return topic


def test_new_topics_are_placed_elsewhere_while_there_are_enough_others() -> None:
    image = put(with_topic(brokers=4), 0, DEMOTED)
    placed = made(image, "placed", 6, 3)
    assert not any(0 in partition.replicas for partition in placed.partitions.values())
    wide = made(image, "wide", 6, 4)
    assert 0 not in {partition.leader for partition in wide.partitions.values()}


def test_a_cluster_of_sick_brokers_takes_topics_all_the_same() -> None:
    image = put(with_topic([0], brokers=1, min_insync_replicas="1"), 0, DEMOTED)
    assert made(image, "placed", 1, 1).partitions[0].leader == 0


def test_a_restart_does_not_heal_but_a_disk_that_answers_does() -> None:
    image = registered(put(with_topic(), 0, SLOW), 0, life=1)
    assert image.brokers[0].health == SLOW
    image, _ = beaten(image, 0)
    assert not image.brokers[0].fenced
    assert image.brokers[0].health == SLOW
    image, reply = beaten(image, 0, storage_stuck=True)
    assert reply.is_fenced
    assert image.brokers[0].health.state is HealthState.STORAGE
    assert image.brokers[0].health.cause is Cause.STORAGE_STUCK
    assert partition_of(image).isr == (1, 2)
    image, reply = beaten(image, 0, storage_stuck=True)
    assert reply.is_fenced, "while it is stuck it stays out"
    image, reply = beaten(image, 0)
    assert not reply.is_fenced
    assert image.brokers[0].is_healthy


def test_an_older_cluster_fences_a_stuck_broker_without_a_record_of_its_health() -> None:
    image = replayed(with_topic(), [FeatureLevelRecord("tidelog.version", 2)])
    image, reply = beaten(image, 0, storage_stuck=True)
    assert reply.is_fenced
    assert image.brokers[0].is_healthy


def test_a_snapshot_keeps_a_brokers_health() -> None:
    image = put(with_topic(), 0, SLOW)
    assert decode_snapshot(encode_snapshot(image)).brokers == image.brokers
    assert image.brokers[0].health == SLOW


def test_the_audit_tells_cause_and_evidence_and_who_asked() -> None:
    image = with_topic()
    records = health_records(image, image.brokers[0], POLICY, SLOW, "User:ann@10.0.0.1")
    batch = Batch(BatchHeader(1, 0, 1, image.next_offset), records)
    event = MetadataAudit(image.next_offset, image).events(batch)[0]
    assert (event.cause, event.actor) == ("slower_than_peers", "User:ann@10.0.0.1")
    assert event.before == {"health": "healthy"}
    assert event.after["health"] == "slow"
    assert event.after["evidence"] == SLOW.evidence


def test_what_is_in_danger_is_a_partition_that_has_lost_others_already() -> None:
    image = with_topic()
    assert at_once(endangered(image, POLICY, 0)) == ""
    short = replayed(image, [PartitionChangeRecord(partition_of(image).topic_id, 0, isr=(0, 1))])
    assert at_once(endangered(short, POLICY, 0)).endswith("-0")
    assert at_once(endangered(short, POLICY, 2)) == "", "it is not in that ISR"
    single = with_topic([0], min_insync_replicas="1")
    assert at_once(endangered(single, POLICY, 0)) == "", "a single replica is never worse off"


def test_what_is_held_up_counts_only_partitions_that_others_could_take() -> None:
    stuck = replayed(
        put(with_topic(), 0, DEMOTED), [PartitionChangeRecord(partition_of(with_topic()).topic_id, 0, leader=0)]
    )
    assert at_once(held_up(stuck, stuck.brokers[0])) == 1
    alone = put(with_topic([0], min_insync_replicas="1"), 0, DEMOTED)
    assert at_once(held_up(alone, alone.brokers[0])) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([DEMOTED, SLOW, BACK, None])),
        max_size=20,
    ),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_health_nor_lack_of_room_costs_min_isr_or_a_leader(
    changes: list[tuple[int, Health | None]], min_isr: int, unclean: bool
) -> None:
    policy = ControllerPolicy(min_insync_replicas=min_isr, unclean_leader_election_enable=unclean)
    image = with_topic([0, 1, 2, 3], brokers=4, min_insync_replicas=str(min_isr))
    for broker, health in changes:
        before = partition_of(image)
        if health is None:
            image, _ = beaten(image, broker, policy, lacks_room=not image.brokers[broker].lacks_room)
        else:
            image = put(image, broker, health, policy)
        image = looked_at(image, policy)
        after = partition_of(image)
        assert after.leader in before.isr
        assert after.leader in after.isr
        assert len(after.isr) >= min_isr
        assert not after.elr
        fit = [r for r in after.isr if image.brokers[r].is_fit]
        roomy = [r for r in after.isr if not image.brokers[r].lacks_room]
        if fit and len(roomy) >= min_isr:
            assert after.leader in fit
        assert looked_at(image, policy) == image, "a second look changes nothing"
