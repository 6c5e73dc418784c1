"""Leaders, ISR and ELR: the sentences of KIP-966 and of the design, one test each."""

from __future__ import annotations

from kraft.controller.broker_removal import removal_piece
from kraft.controller.brokers import fence, unfence
from kraft.controller.elections import (
    Election,
    PartitionTarget,
    change_partition,
    changes_where_isr_suffices,
    changes_where_leaders_lack,
)
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.records import BrokerRegistrationChangeRecord, Cause, PartitionChangeRecord, PartitionRecord, TopicRecord
from tests.common.call_count import counted_calls
from tests.kraft.decisions import changes_to_preferred_leaders
from tests.kraft.images import POLICY, beaten, registered, with_brokers

TOPIC = bytes([9] * 16)


def partition(**fields: object) -> PartitionImage:
    base: dict[str, object] = {
        "topic_id": TOPIC, "partition": 0, "replicas": (0, 1, 2), "isr": (0, 1, 2), "leader": 0, "leader_epoch": 5,
        "partition_epoch": 9,
    }  # fmt: skip
    return PartitionImage(**{**base, **fields})  # type: ignore[arg-type]


def changed(
    image: PartitionImage,
    isr: tuple[int, ...] | None = None,
    alive: tuple[int, ...] = (0, 1, 2),
    unclean: tuple[int, ...] = (),
    election: Election = Election.KEEP,
    min_isr: int = 2,
) -> tuple[PartitionImage, PartitionChangeRecord | None]:
    target = PartitionTarget(
        lambda broker: broker in alive, min_isr, Cause.BROKER_FENCED, isr, unclean=unclean, election=election
    )
    record = change_partition(image, target)
    return (image if record is None else image.changed(record)), record


def test_nothing_to_change_gives_no_record() -> None:
    assert changed(partition())[1] is None


def test_a_replica_that_leaves_while_the_isr_is_large_enough_is_not_eligible() -> None:
    after, _ = changed(partition(), isr=(0, 1))
    assert (after.isr, after.elr, after.leader, after.leader_epoch, after.partition_epoch) == ((0, 1), (), 0, 5, 10)


def test_a_replica_that_leaves_while_the_isr_is_below_min_isr_becomes_eligible() -> None:
    after, _ = changed(partition(isr=(0, 1)), isr=(0,))
    assert (after.isr, after.elr) == ((0,), (1,))


def test_all_who_leave_at_once_below_min_isr_become_eligible() -> None:
    after, _ = changed(partition(), isr=(0,))
    assert (after.isr, after.elr) == ((0,), (1, 2))


def test_the_elr_is_cleared_when_the_isr_is_large_enough_again() -> None:
    after, _ = changed(partition(isr=(0,), elr=(1, 2)), isr=(0, 2))
    assert (after.isr, after.elr, after.last_known_elr) == ((0, 2), (), ())


def test_a_small_replica_set_needs_no_more_than_itself() -> None:
    after, _ = changed(partition(replicas=(0,), isr=(0,)), isr=(), alive=(), min_isr=2)
    assert (after.isr, after.elr, after.leader) == ((), (0,), -1)


def test_the_leader_comes_from_the_isr_before_the_elr() -> None:
    after, record = changed(partition(replicas=(2, 0, 1), isr=(0, 1), elr=(2,), leader=0), isr=(1,), alive=(1, 2))
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1,), 6)
    assert record is not None
    assert record.cause is Cause.BROKER_FENCED


def test_the_leader_comes_from_the_elr_when_the_isr_is_empty_and_the_isr_becomes_the_leader() -> None:
    after, record = changed(partition(isr=(0,), elr=(1, 2)), isr=(), alive=(2,))
    assert (after.leader, after.isr, after.elr) == (2, (2,), (0, 1))
    assert record is not None
    assert record.cause is Cause.ELECTED_FROM_ELR


def test_no_leader_rather_than_one_outside_isr_and_elr() -> None:
    after, _ = changed(partition(isr=(0,), elr=()), isr=(), alive=(1, 2), min_isr=2)
    assert (after.leader, after.isr, after.elr, after.last_known_leader) == (-1, (), (0,), 0)


def test_an_unclean_stop_leaves_isr_and_elr() -> None:
    after, _ = changed(partition(isr=(0, 1), elr=(2,), leader=0), isr=(0,), unclean=(1,), alive=(0,), min_isr=3)
    assert (after.isr, after.elr, after.last_known_elr) == ((0,), (2,), (1,))


def test_an_elr_from_a_larger_min_isr_is_not_taken_at_its_word() -> None:
    after, _ = changed(partition(isr=(0,), elr=(1, 2)), isr=(), alive=(1, 2), min_isr=1)
    assert (after.leader, after.isr, after.elr, after.last_known_leader) == (-1, (), (0,), 0)


def test_both_sets_empty_only_the_last_known_leader_returns() -> None:
    lost, _ = changed(partition(isr=(1,), leader=1), isr=(), unclean=(1,), alive=(), min_isr=1)
    assert (lost.isr, lost.elr, lost.leader, lost.last_known_leader) == ((), (), -1, 1)
    still, _ = changed(lost, alive=(0, 2), min_isr=1)
    assert still.leader == -1
    back, record = changed(lost, alive=(0, 1, 2), min_isr=1)
    assert (back.leader, back.isr, back.last_known_leader) == (1, (1,), -1)
    assert record is not None
    assert record.cause is Cause.ELECTED_LAST_KNOWN_LEADER


def test_while_the_elr_has_a_member_the_last_known_leader_waits() -> None:
    lost = partition(isr=(), elr=(0,), leader=-1, last_known_leader=2)
    assert changed(lost, alive=(1, 2))[1] is None


def test_an_unclean_election_happens_only_when_asked_for_and_clears_the_elr() -> None:
    lost = partition(isr=(), elr=(0,), leader=-1, last_known_leader=0)
    assert changed(lost, alive=(1,))[1] is None
    after, record = changed(lost, alive=(1,), election=Election.UNCLEAN)
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (1, (1,), (), ())
    assert record is not None
    assert record.cause is Cause.UNCLEAN_ELECTION


def test_a_valid_leader_stays_unless_the_preferred_one_is_asked_for() -> None:
    moved = partition(leader=1)
    assert changed(moved)[1] is None
    after, _ = changed(moved, election=Election.PREFERRED)
    assert (after.leader, after.leader_epoch) == (0, 6)
    kept, record = changed(partition(leader=1, isr=(1, 2)), election=Election.PREFERRED)
    assert record is None
    assert kept.leader == 1


def test_a_replica_taken_out_of_the_set_bumps_the_leader_epoch() -> None:
    target = PartitionTarget(lambda _b: True, 2, Cause.REASSIGNMENT_COMPLETED, isr=(0, 1), replicas=(0, 1))
    record = change_partition(partition(), target)
    assert record is not None
    after = partition().changed(record)
    assert (after.replicas, after.leader, after.leader_epoch) == ((0, 1), 0, 6)


def three_brokers_with(partitions: list[PartitionRecord]) -> MetadataImage:
    return replayed(with_brokers(3), [TopicRecord("t", TOPIC), *partitions])


def test_a_broker_that_leaves_loses_every_isr_and_leadership_and_gets_none_back_by_itself() -> None:
    image = three_brokers_with(
        [PartitionRecord(TOPIC, i, (i % 3, (i + 1) % 3, (i + 2) % 3), (0, 1, 2), i % 3) for i in range(9)]
    )
    after = replayed(image, fence(image, image.brokers[1], POLICY, Cause.SESSION_EXPIRED))
    assert all(1 not in p.isr and p.leader in (0, 2) for p in after.topics.partitions())
    moved = [p for p in after.topics.partitions() if p.replicas[0] == 1]
    assert all((p.leader, p.leader_epoch) == (2, 1) for p in moved)
    (unfenced,) = unfence(after, after.brokers[1], POLICY)
    after = replayed(after, [unfenced])
    keys = [(p.topic_id, p.partition) for p in after.topics.partitions()]
    assert changes_where_leaders_lack(after, POLICY, keys, Cause.BROKER_UNFENCED) == []


def test_leaderships_return_to_preferred_replicas_that_are_in_sync_and_not_more_than_asked() -> None:
    image = three_brokers_with(
        [PartitionRecord(TOPIC, i, (0, 1, 2), (0, 1, 2) if i < 5 else (1, 2), 1) for i in range(8)]
    )
    changes = changes_to_preferred_leaders(image, POLICY, 3)
    assert [(c.partition, c.leader, c.cause) for c in changes] == [
        (0, 0, Cause.PREFERRED_LEADER),
        (1, 0, Cause.PREFERRED_LEADER),
        (2, 0, Cause.PREFERRED_LEADER),
    ]
    assert len(changes_to_preferred_leaders(image, POLICY, 100)) == 5
    fenced = replayed(image, [BrokerRegistrationChangeRecord(0, image.brokers[0].epoch, fenced=True)])
    assert changes_to_preferred_leaders(fenced, POLICY, 100) == []


def test_killing_all_brokers_at_once_keeps_the_leader_with_everything_electable() -> None:
    image = three_brokers_with([PartitionRecord(TOPIC, 0, (0, 1, 2), (0, 1, 2), 0)])
    for broker in (0, 1, 2):  # each comes back before it was missed, after an unclean stop
        image = registered(image, broker, life=1)
    lost = image.partition(TOPIC, 0)
    assert lost is not None
    assert (lost.leader, lost.isr, lost.elr, lost.last_known_leader) == (-1, (), (), 2)
    for broker in (0, 1):
        image, _ = beaten(image, broker)
        found = image.partition(TOPIC, 0)
        assert found is not None
        assert found.leader == -1
    image, _ = beaten(image, 2)
    found = image.partition(TOPIC, 0)
    assert found is not None
    assert (found.leader, found.isr) == (2, (2,))


def test_moving_the_leaderships_of_a_third_of_three_thousand_partitions_takes_few_calls() -> None:
    records = [PartitionRecord(TOPIC, i, (i % 3, (i + 1) % 3, (i + 2) % 3), (0, 1, 2), i % 3) for i in range(3_000)]
    image = three_brokers_with(records)
    with counted_calls() as spent:
        after = replayed(image, fence(image, image.brokers[0], POLICY, Cause.SESSION_EXPIRED))
        while changes := removal_piece(after, POLICY):
            after = replayed(after, changes)
    assert all(p.leader in (1, 2) and p.isr == (1, 2) for p in after.topics.partitions())
    assert sum(p.leader_epoch for p in after.topics.partitions()) == 1_000
    assert spent.calls < 300 * 1_000  # for each leadership


def test_a_new_controller_clears_the_elrs_that_its_smaller_min_isr_makes_worthless() -> None:
    image = replayed(
        with_brokers(3),
        [
            TopicRecord("t", TOPIC),
            PartitionRecord(TOPIC, 0, (0, 1), (0,), 0, elr=(1,)),
            PartitionRecord(TOPIC, 1, (0, 1), (), -1, elr=(0, 1), last_known_leader=0),
        ],
    )
    assert changes_where_isr_suffices(image, POLICY, image.topics.index.unsettled) == []
    (record,) = changes_where_isr_suffices(image, ControllerPolicy(min_insync_replicas=1), image.topics.index.unsettled)
    assert (record.partition, record.elr, record.cause) == (0, (), Cause.MIN_ISR_CHANGED)
