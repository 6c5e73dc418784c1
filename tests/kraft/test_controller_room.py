"""Brokers whose disks are full: who leads then, who is in sync, and who may come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode
from kraft.controller.brokers import fence
from kraft.controller.elections import changes_where_brokers_are_unfit
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.records import Cause, FeatureLevelRecord, PartitionChangeRecord
from tests.kraft.decisions import changes_to_preferred_leaders, decide_alter_partition, decide_elect_leaders
from tests.kraft.images import POLICY, alter_partition, beaten, partition_of, with_topic
from wire.messages import ElectLeadersRequest


def low_on_disk(image: MetadataImage, *brokers: int, policy: ControllerPolicy = POLICY) -> MetadataImage:
    for broker in brokers:
        image, _ = beaten(image, broker, policy, lacks_room=True)
        image = looked_at(image, policy)
    return image


def looked_at(image: MetadataImage, policy: ControllerPolicy) -> MetadataImage:
    """After a look at what others may take over from brokers without room."""
    keys = [(p.topic_id, p.partition) for p in image.topics.partitions()]
    if not any(broker.lacks_room for broker in image.brokers.values()):
        return image
    return replayed(image, changes_where_brokers_are_unfit(image, policy, keys))


def test_a_leader_without_room_hands_over_and_leaves_the_isr() -> None:
    before = with_topic()
    after = partition_of(low_on_disk(before, 0))
    assert (after.leader, after.isr, after.elr) == (1, (1, 2), ())
    assert after.leader_epoch == partition_of(before).leader_epoch + 1


def test_a_follower_without_room_leaves_the_isr_under_the_same_leader() -> None:
    before = with_topic()
    after = partition_of(low_on_disk(before, 2))
    assert (after.leader, after.isr, after.leader_epoch) == (0, (0, 1), partition_of(before).leader_epoch)


def test_where_nobody_has_room_everything_stays_until_enough_have_some() -> None:
    policy = ControllerPolicy(min_insync_replicas=1)
    image = low_on_disk(with_topic([0, 1], min_insync_replicas="1"), 0, 1, policy=policy)
    assert (partition_of(image).leader, partition_of(image).isr) == (
        1,
        (1,),
    ), "the first left it to the second"
    image, _ = beaten(image, 0, policy, lacks_room=False)
    joined = decide_alter_partition(image, alter_partition(image, partition_of(image), [0, 1]), 3, policy)
    image = low_on_disk(replayed(image, joined.records), 1, policy=policy)
    assert (partition_of(image).leader, partition_of(image).isr) == (0, (0,))


def test_who_lacks_room_joins_no_isr_but_stays_where_it_is_needed() -> None:
    image = low_on_disk(with_topic(), 0, 1)
    partition = partition_of(image)
    assert (partition.leader, partition.isr) == (1, (1, 2)), (
        "without broker 1 there would be fewer than min.insync.replicas"
    )
    refused = decide_alter_partition(image, alter_partition(image, partition, [0, 1, 2]), 3, POLICY)
    assert refused.reply.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    kept = decide_alter_partition(image, alter_partition(image, partition, [1]), 3, POLICY)
    assert kept.reply.topics[0].partitions[0].error_code == ErrorCode.NONE
    image, _ = beaten(image, 0, lacks_room=False)
    joins = decide_alter_partition(image, alter_partition(image, partition, [0, 1, 2]), 3, POLICY)
    assert joins.reply.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_leadership_returns_only_when_there_is_room_again() -> None:
    image = low_on_disk(with_topic(brokers=3), 0)
    everyone = replayed(image, [PartitionChangeRecord(partition_of(image).topic_id, 0, isr=(0, 1, 2))])
    wanted = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
    assert changes_to_preferred_leaders(everyone, POLICY, 10) == []
    assert decide_elect_leaders(everyone, wanted, POLICY).records == []
    roomy, _ = beaten(everyone, 0, lacks_room=False)
    assert [record.leader for record in changes_to_preferred_leaders(roomy, POLICY, 10)] == [0]
    assert len(decide_elect_leaders(roomy, wanted, POLICY).records) == 1


def test_a_broker_that_dies_leaves_its_leadership_to_one_with_room() -> None:
    image = low_on_disk(with_topic(min_insync_replicas="3"), 1)  # with three to be in sync nobody can be left out
    assert partition_of(image).isr == (0, 1, 2)
    after = partition_of(replayed(image, fence(image, image.brokers[0], POLICY, Cause.SESSION_EXPIRED)))
    assert after.leader == 2
    image = low_on_disk(image, 2)
    after = partition_of(replayed(image, fence(image, image.brokers[0], POLICY, Cause.SESSION_EXPIRED)))
    assert after.leader == 1, "one without room rather than none"


def test_nothing_of_it_is_committed_while_older_nodes_may_run() -> None:
    image = replayed(with_topic(), [FeatureLevelRecord("tidelog.version", 0)])
    assert low_on_disk(image, 0) == image


def test_a_snapshot_keeps_who_lacks_room() -> None:
    image = low_on_disk(with_topic(), 0)
    assert decode_snapshot(encode_snapshot(image)).brokers == image.brokers
    assert image.brokers[0].lacks_room


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20),
    st.integers(1, 4),
    st.booleans(),
)
def test_lack_of_room_never_costs_min_isr_nor_brings_an_unclean_leader(
    tells: list[tuple[int, bool]], min_isr: int, unclean: bool
) -> None:
    policy = ControllerPolicy(min_insync_replicas=min_isr, unclean_leader_election_enable=unclean)
    image = with_topic([0, 1, 2, 3], brokers=4, min_insync_replicas=str(min_isr))
    for broker, lacks_room in tells:
        before = partition_of(image)
        image, _ = beaten(image, broker, policy, lacks_room=lacks_room)
        image = looked_at(image, policy)
        after = partition_of(image)
        able = [r for r in after.isr if not image.brokers[r].lacks_room]
        assert after.leader in before.isr
        assert after.leader in after.isr
        assert len(after.isr) >= min_isr
        assert not after.elr
        if len(able) >= min_isr:  # enough go on without those that lack it
            assert after.leader in able
            assert list(after.isr) == able
        again, _ = beaten(image, broker, policy, lacks_room=lacks_room)
        assert again == image, "what it says again changes nothing"
