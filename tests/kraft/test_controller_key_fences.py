"""Fences behind which the keys of a moving tenant are handed over: when they begin, and when they are taken back."""

from __future__ import annotations

import pytest

from kraft.controller.key_fences import FENCE_MAX_S, FENCE_S, PAUSES
from kraft.controller.key_moves import DRAIN_S, Report
from kraft.records import NO_LEADER, Cause, KeysPhase, PartitionChangeRecord
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from tests.kraft.test_controller_key_moves import GROUPS, IDS, PARTITIONS, Cluster, ClusterWithData

FENCES = [(KeysPhase.IDS_COPYING, TRANSACTION_TOPIC), (KeysPhase.COPYING, GROUP_TOPIC)]


@pytest.mark.parametrize(("phase", "name"), FENCES)
def test_a_fence_behind_which_nothing_goes_on_is_taken_back(phase: KeysPhase, name: str) -> None:
    """As where a partition has no leader, or a marker cannot be written. Keys are served most of the time, and a slow
    broker has more time in each attempt."""
    cluster = ClusterWithData()
    clearing = KeysPhase.IDS_CLEARING if phase in IDS else KeysPhase.CLEARING
    fenced_s = served_s = 0.0
    waited: list[float] = []
    for _ in range(8):
        cluster.go_to(phase)
        epoch, began_s = cluster.tenant.keys_epoch, cluster.now_s
        cluster.report(but=1)
        while (step := cluster.step()).record is None:
            assert not cluster.serving(name)
            assert bool(step.problem) == (cluster.now_s - began_s >= FENCE_S), "an operator sees what takes long"
            cluster.now_s += 1
        assert step.problem
        waited.append(cluster.now_s - began_s)
        fenced_s += waited[-1]
        assert (cluster.tenant.keys_phase, cluster.tenant.keys_epoch) == (clearing, epoch + 1)
        assert cluster.serving(name) == {"east"}
        served_from_s = cluster.now_s
        assert cluster.step().record is None, "the new range must be cleared once more"
        cluster.report()
        while (step := cluster.step()).record is None:
            assert step.problem
            cluster.now_s += 1
        served_s += cluster.now_s - served_from_s
    assert waited[:3] == [FENCE_S, 2 * FENCE_S, 4 * FENCE_S]
    assert max(waited) == FENCE_MAX_S
    assert served_s >= PAUSES * fenced_s
    assert cluster.phases()[-1] is KeysPhase.SETTLED


@pytest.mark.parametrize(("phase", "name"), FENCES)
def test_a_fence_lasts_for_as_long_as_partitions_are_handed_over(phase: KeysPhase, name: str) -> None:
    cluster = ClusterWithData()
    cluster.go_to(phase)
    for left in reversed(range(PARTITIONS)):
        cluster.now_s += FENCE_S - 1
        assert cluster.step().record is None
        cluster.report(but=left)
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.SETTLED
    assert cluster.serving(name) == {"west"}


def test_a_part_of_a_partition_that_is_handed_over_prolongs_a_fence() -> None:
    """A report without partitions says so."""
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    for _ in range(20):
        cluster.now_s += FENCE_S - 1
        went_on = Report(cluster.tenant.id, cluster.tenant.keys_epoch, int(KeysPhase.IDS_COPYING), ())
        late = Report(cluster.tenant.id, cluster.tenant.keys_epoch - 1, int(KeysPhase.IDS_COPYING), ())
        cluster.reports.take(cluster.image, 1, cluster.topic(TRANSACTION_TOPIC).topic_id, [went_on], cluster.now_s)
        cluster.step()
        assert cluster.tenant.keys_phase is KeysPhase.IDS_COPYING
    cluster.now_s += FENCE_S
    cluster.reports.take(cluster.image, 1, cluster.topic(TRANSACTION_TOPIC).topic_id, [late], cluster.now_s)
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.IDS_CLEARING


def test_a_report_that_is_repeated_does_not_prolong_a_fence() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    for _ in range(10):
        cluster.report(but=1)
        cluster.step()
        cluster.now_s += FENCE_S / 4
    assert cluster.tenant.keys_phase is KeysPhase.IDS_CLEARING


def test_a_controller_that_becomes_active_waits_for_reports_before_it_takes_a_fence_back() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    cluster.now_s += 10 * FENCE_S
    cluster.reports.restart(cluster.now_s)
    assert cluster.step().record is None
    cluster.report()
    cluster.step()
    assert cluster.tenant.ids_cell == "west"


@pytest.mark.parametrize("phase", [KeysPhase.IDS_CLEARING, KeysPhase.CLEARING])
@pytest.mark.parametrize("cell", ["east", "west"])
def test_no_fence_begins_while_a_partition_has_no_leader(phase: KeysPhase, cell: str) -> None:
    cluster = Cluster()
    cluster.go_to(phase)
    topic = cluster.topic(TRANSACTION_TOPIC if phase in IDS else GROUP_TOPIC)
    held = next(held for held in topic.ranges if held.cell == cell)
    lost, leader = topic.partitions[held.first], topic.partitions[held.first].leader
    cluster.report()
    for new, goes_on in ((NO_LEADER, False), (leader, True)):
        cluster.commit([PartitionChangeRecord(topic.topic_id, lost.partition, leader=new, cause=Cause.BROKER_FENCED)])
        step = cluster.step()
        assert (step.record is not None) == goes_on
        assert (f"Partitions {lost.partition} of {topic.name}" in step.problem) != goes_on


def test_ids_wait_for_transactions_that_lack_markers_before_their_fence_and_the_operator_sees_it() -> None:
    """As their leaders in the old range report, or do not."""
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_CLEARING)
    cluster.report(but=PARTITIONS)
    step = cluster.step()
    assert (step.record, step.problem) == (None, "")
    cluster.now_s += 3_600
    step = cluster.step()
    assert step.record is None
    assert step.problem.startswith(f"Partitions 0, 1, 2 of {TRANSACTION_TOPIC} are not ready for its transactional ids")
    assert cluster.phases() == [*IDS[1:], *GROUPS]


def test_an_attempt_after_a_fence_may_hold_transactions_up_again() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.HOLDING)
    cluster.go_to(KeysPhase.COPYING)
    cluster.now_s += FENCE_S
    cluster.step()
    cluster.now_s += PAUSES * FENCE_S
    cluster.go_to(KeysPhase.DRAINING)
    cluster.now_s += DRAIN_S
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.HOLDING
