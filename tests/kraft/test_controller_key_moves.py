"""The phases in which a tenant's transactional ids and groups change cells, whoever the controller is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.controller.key_moves import (
    DRAIN_AGAIN_S,
    DRAIN_S,
    HOLD_MAX_S,
    HOLD_S,
    Drains,
    KeyReports,
    KeyStep,
    Report,
    key_step,
    keys_are_home,
)
from kraft.controller.key_ranges import range_step
from kraft.controller.reassignment import start_reassignment
from kraft.controller.tenant_moves import MoveStep, moving
from kraft.controller.tenants import decide_delete_tenant
from kraft.features import FLEET_LEVEL, IDS_LEVEL, TIDELOG_VERSION
from kraft.image.delta import replayed
from kraft.image.key_ranges import GROUPS_HELD_BACK, Keeping, keeping, range_at, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import TopicImage
from kraft.records import Cause, FeatureLevelRecord, KeysPhase, PartitionChangeRecord, TenantState
from kraft.topic_names import CLIENT_KEY_TOPICS, GROUP_TOPIC, TRANSACTION_TOPIC
from tests.kraft.images import POLICY, new_topic
from tests.kraft.tenants import CELLS, cells_of_three, created, tenant_of, with_topics
from tests.kraft.test_controller_tenant_moves import caught_up, move
from wire.messages import DeleteTenantRequest

Cells = Mapping[str, Sequence[int]]
PARTITIONS = 3
IDS = [KeysPhase.IDS_CLEARING, KeysPhase.IDS_COPYING, KeysPhase.SETTLED]
GROUPS = [KeysPhase.CLEARING, KeysPhase.DRAINING, KeysPhase.COPYING, KeysPhase.SETTLED]
GROUPS_BEFORE = [KeysPhase.CLEARING, KeysPhase.COPYING, KeysPhase.SETTLED]
ALL = [*IDS[:-1], KeysPhase.CLEARING, KeysPhase.DRAINING, KeysPhase.HOLDING, KeysPhase.COPYING, KeysPhase.SETTLED]


class Cluster:
    """The tenant `a` of cell `east`, which moves to `west`."""

    def __init__(
        self, level: int = IDS_LEVEL, topics: tuple[str, ...] = CLIENT_KEY_TOPICS, cells: Cells = CELLS
    ) -> None:
        image = replayed(cells_of_three(cells), [FeatureLevelRecord(TIDELOG_VERSION, level)])
        image, _ = created(image, cell="east")
        image, _ = with_topics(image, *(new_topic(topic, PARTITIONS, 3) for topic in topics))
        self.image = settled(image)
        self.reports = KeyReports()
        self.now_s = 100.0
        self.image, reply = move(self.image, "west")
        assert reply.error_code == 0

    @property
    def tenant(self) -> TenantImage:
        return tenant_of(self.image)

    def commit(self, records: list[MetadataRecord]) -> None:
        before = self.tenant
        self.image = replayed(self.image, records)
        self.reports.applied(before, self.tenant, self.now_s)

    def step(self) -> KeyStep:
        step = key_step(self.image, self.tenant, self.reports, self.now_s)
        if step.record is not None:
            self.commit([step.record])
        return step

    def moving_step(self) -> MoveStep:
        """A step of the whole move: of the tenant's partitions, too."""
        step = at_once(moving(self.image, POLICY, self.tenant, random.Random(1), self.reports, self.now_s))
        self.commit(step.records)
        return step

    def topic(self, name: str) -> TopicImage:
        return self.image.topics.by_name[name]

    def report(self, *, but: int = 0) -> None:
        """The leaders report the tenant's phase as done, without the last `but` partitions."""
        tenant = self.tenant
        phase = tenant.keys_phase
        name = GROUP_TOPIC if phase in (KeysPhase.CLEARING, KeysPhase.COPYING) else TRANSACTION_TOPIC
        if phase is KeysPhase.SETTLED or name not in self.image.topics:
            return
        topic = self.topic(name)
        there, here = range_at(topic, tenant, tenant.keys_target or ""), range_for(topic, tenant)
        assert there is not None
        assert here is not None
        ranges = {KeysPhase.CLEARING: [there], KeysPhase.IDS_CLEARING: [there, here]}.get(phase, [here])
        partitions = [index for held in ranges for index in range(held.first, held.end)]
        for index in partitions[: len(partitions) - but]:
            partition = topic.partitions[index]
            done = Report(tenant.id, tenant.keys_epoch, int(phase), ((index, partition.leader_epoch),))
            self.reports.take(self.image, partition.leader, topic.topic_id, [done], self.now_s)

    def phases(self) -> list[KeysPhase]:
        """Those of the rest of the move."""
        found: list[KeysPhase] = []
        for _ in range(20):
            self.report()
            step = self.step()
            if step.settled:
                return found
            assert step.record is not None
            found.append(self.tenant.keys_phase)
        raise AssertionError("the move never ends")

    def go_to(self, phase: KeysPhase) -> None:
        for _ in range(20):
            if self.tenant.keys_phase is phase:
                return
            if phase is KeysPhase.HOLDING and self.tenant.keys_phase is KeysPhase.DRAINING:
                self.now_s += DRAIN_S
            else:
                self.report()
            self.step()
        raise AssertionError(f"the move never comes to {phase.name}")


class ClusterWithData(Cluster):
    """The tenant's partitions are in the new cell already. There is a third cell."""

    def __init__(self) -> None:
        super().__init__(cells={**CELLS, "north": (6, 7, 8)})
        self.data = f"{self.tenant.prefix}t"
        self.image, (result,) = with_topics(self.image, new_topic(self.data, partitions=5, factor=3))
        assert result.error_code == 0

    def reassign(self, replicas: tuple[int, ...]) -> None:
        """Of one partition of the tenant: by an operator, or by the balancer."""
        topic = self.topic(self.data)
        record = start_reassignment(self.image, topic, topic.partitions[0], replicas, POLICY)
        assert record is not None
        self.commit([record])

    def serving(self, name: str) -> set[str]:
        """The cells whose partitions of the topic serve the tenant."""
        topic = self.topic(name)
        served = [index for index in topic.partitions if keeping(topic, self.tenant, index) is Keeping.SERVED]
        return {held.cell for held in topic.ranges for index in served if index in held}


def settled(image: MetadataImage) -> MetadataImage:
    """Every cell has its ranges, with replicas on its own brokers."""
    rng = random.Random(1)
    for _ in range(100):
        step = at_once(range_step(image, POLICY, rng))
        image = replayed(image, step.records)
        running = [partition for partition in image.topics.partitions() if partition.is_reassigning]
        if not step.records and not running:
            return image
        for partition in running:
            image = caught_up(image, partition)
    raise AssertionError("the ranges never settle")


def test_ids_go_first_and_groups_when_no_transaction_has_offsets_of_them() -> None:
    cluster = Cluster()
    assert (cluster.tenant.ids_cell, cluster.tenant.keys_cell) == ("east", "east")
    assert cluster.phases() == [*IDS, *GROUPS]
    assert (cluster.tenant.ids_cell, cluster.tenant.keys_cell) == ("west", "west")
    assert keys_are_home(cluster.image, cluster.tenant)


def test_before_the_level_groups_go_alone_and_ids_stay_for_good() -> None:
    cluster = Cluster(FLEET_LEVEL)
    assert not cluster.topic(TRANSACTION_TOPIC).ranges
    assert cluster.phases() == GROUPS_BEFORE
    assert (cluster.tenant.ids_cell, cluster.tenant.keys_cell) == (None, "west")


def test_without_the_topic_of_transactions_nothing_has_to_drain() -> None:
    cluster = Cluster(topics=(GROUP_TOPIC,))
    assert cluster.phases() == GROUPS


def test_without_groups_ids_go_alone() -> None:
    assert Cluster(topics=(TRANSACTION_TOPIC,)).phases() == IDS


def test_a_phase_ends_when_each_leader_of_now_has_reported() -> None:
    cluster = Cluster()
    for phase in ALL[:-1]:
        cluster.go_to(phase)
        cluster.report(but=1)
        assert cluster.step().record is None
        drains = phase in (KeysPhase.DRAINING, KeysPhase.HOLDING)
        topic = cluster.topic(TRANSACTION_TOPIC if phase in IDS or drains else GROUP_TOPIC)
        for partition in list(topic.partitions.values()):  # another leads: what the one before has said counts no more
            leader = next(replica for replica in partition.replicas if replica != partition.leader)
            cluster.commit(
                [PartitionChangeRecord(topic.topic_id, partition.partition, leader=leader, cause=Cause.BROKER_FENCED)]
            )
        cluster.report(but=1)
        cluster.reports.restart(cluster.now_s)  # another controller, too
        assert cluster.step().record is None
    assert cluster.phases()[-1] is KeysPhase.SETTLED


def test_a_transaction_that_keeps_offsets_holds_the_others_up_for_seconds_only() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.DRAINING)
    epoch = cluster.tenant.keys_epoch
    cluster.report(but=1)
    assert cluster.step().record is None
    cluster.now_s += DRAIN_S
    cluster.step()
    assert (cluster.tenant.keys_phase, cluster.tenant.keys_epoch) == (KeysPhase.HOLDING, epoch + 1)
    cluster.report(but=1)
    assert cluster.step().record is None
    cluster.now_s += HOLD_S
    cluster.step()
    assert (cluster.tenant.keys_phase, cluster.tenant.keys_epoch) == (KeysPhase.CLEARING, epoch + 2)
    cluster.report()
    assert cluster.step().problem
    cluster.now_s += DRAIN_AGAIN_S
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.DRAINING
    cluster.report(but=1)
    cluster.now_s += DRAIN_S / 2
    assert cluster.step().record is None, "another attempt has its whole time"
    assert cluster.phases() == GROUPS[2:]


def test_a_good_moment_is_looked_at_once_more_where_no_transaction_begins_to_send_offsets() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.DRAINING)
    cluster.now_s += DRAIN_S
    cluster.step()
    cluster.report()
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.DRAINING
    assert cluster.step().record is None, "what was reported before counts no more"
    cluster.now_s += DRAIN_S
    cluster.step()
    assert [cluster.tenant.keys_phase] == [KeysPhase.CLEARING], "no attempt holds transactions up twice"


def test_a_controller_that_starts_while_transactions_wait_to_begin_lets_them_go_on() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.HOLDING)
    cluster.reports = KeyReports()
    cluster.reports.applied(None, cluster.tenant, cluster.now_s)
    cluster.report(but=1)
    assert cluster.step().record is None
    cluster.now_s += HOLD_S
    cluster.step()
    assert cluster.tenant.keys_phase is KeysPhase.CLEARING


def test_producers_go_on_for_as_long_as_they_have_waited_however_often_it_was_in_vain() -> None:
    cluster, drains = Cluster(), Drains()
    cluster.go_to(KeysPhase.DRAINING)
    tenant, now_s, held_s = cluster.tenant, 0.0, 0.0
    draining, holding, clearing = (
        replace(tenant, keys_phase=phase) for phase in (KeysPhase.DRAINING, KeysPhase.HOLDING, KeysPhase.CLEARING)
    )
    for _ in range(1_100):
        drains.applied(clearing, draining, now_s)
        drains.applied(draining, holding, now_s)
        began_s = now_s
        while not drains.is_overdue(holding, now_s):
            now_s += HOLD_S
        assert held_s <= now_s - began_s <= HOLD_MAX_S
        held_s = now_s - began_s
        drains.applied(holding, clearing, now_s)
        assert not drains.may_begin(clearing, now_s + max(held_s, DRAIN_AGAIN_S) - 1)
        now_s += max(held_s, DRAIN_AGAIN_S)
        assert drains.may_begin(clearing, now_s)
    assert held_s == HOLD_MAX_S


class LongTransactions:
    """Producers whose transactions last `length_s`, one after another, and have a group's offsets from the beginning or
    from the end on."""

    def __init__(self, producers: int, length_s: float, rng: random.Random) -> None:
        self.length_s = length_s
        self.since = [-length_s * rng.random() for _ in range(producers)]  # of each one's transaction
        self.is_late = [rng.random() < 0.3 for _ in range(producers)]
        self.has = [not late for late in self.is_late]
        self.idle = [False] * producers
        self.longest_wait_s = 0.0  # of an ongoing transaction, for its offsets

    def pass_to(self, now_s: float, phase: KeysPhase) -> None:
        for number, since in enumerate(self.since):
            if self.idle[number] and phase is not KeysPhase.HOLDING:
                self.idle[number], self.since[number], since = False, now_s, now_s
            if self.idle[number]:
                continue
            wants_from = since + self.length_s * 0.9 if self.is_late[number] else since
            if not self.has[number] and now_s >= wants_from:
                if phase in GROUPS_HELD_BACK:
                    self.longest_wait_s = max(self.longest_wait_s, now_s - wants_from)
                else:
                    self.has[number] = True
            if self.has[number] and now_s >= since + self.length_s:
                self.has[number], self.idle[number] = False, True


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.sampled_from([0.2, 4.0, 12.0, 45.0, 200.0, 900.0]), st.integers(0, 1 << 30))
def test_a_move_ends_however_long_the_tenants_transactions_keep_offsets(count: int, length_s: float, seed: int) -> None:
    cluster, producers = Cluster(), LongTransactions(count, length_s, random.Random(seed))
    cluster.go_to(KeysPhase.CLEARING)
    began_s, step_s = cluster.now_s, max(0.25, length_s / 100)
    while (phase := cluster.tenant.keys_phase) is not KeysPhase.COPYING:
        assert cluster.now_s - began_s < 10 * length_s + 120
        cluster.now_s += step_s
        producers.pass_to(cluster.now_s - began_s, phase)
        if phase is KeysPhase.CLEARING or not any(producers.has):
            cluster.report()
        cluster.step()
    assert not any(producers.has)
    assert producers.longest_wait_s <= 2 * (DRAIN_S + step_s), "an ongoing transaction waits for seconds only"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(ALL), st.integers(0, 2), st.booleans())
def test_a_move_that_is_cancelled_in_any_phase_leads_back(phase: KeysPhase, but: int, again: bool) -> None:
    cluster = Cluster()
    cluster.step()
    cluster.go_to(phase)
    cluster.report(but=but)
    cluster.image, _ = move(cluster.image, "east")
    if again:
        cluster.step()
        cluster.image, _ = move(cluster.image, "west")
    found = cluster.phases()
    home = "west" if again else "east"
    assert keys_are_home(cluster.image, cluster.tenant)
    for name in CLIENT_KEY_TOPICS:
        held = range_for(cluster.topic(name), cluster.tenant)
        assert held is not None
        assert held.cell == home
    assert KeysPhase.DRAINING not in found or found.index(KeysPhase.DRAINING) < found.index(KeysPhase.COPYING)


@pytest.mark.parametrize("phase", ALL[:-1])
@pytest.mark.parametrize("cell", ["east", "north"])
def test_keys_are_served_at_once_when_their_tenant_is_to_go_elsewhere(phase: KeysPhase, cell: str) -> None:
    """They wait for no partition, which may need hours."""
    cluster = ClusterWithData()
    cluster.go_to(phase)
    cluster.image, reply = move(cluster.image, cell)
    assert (reply.error_code, reply.cell) == (0, cell)
    assert cluster.moving_step().records
    assert (cluster.tenant.keys_phase, cluster.tenant.keys_target) == (KeysPhase.SETTLED, None)
    assert cluster.serving(TRANSACTION_TOPIC) == {"east" if phase in IDS else "west"}
    assert cluster.serving(GROUP_TOPIC) == {"east"}
    for _ in range(5):  # all partitions are under way
        cluster.report()
        step = cluster.moving_step()
    assert (step.running, cluster.tenant.keys_phase) == (5, KeysPhase.SETTLED)


@pytest.mark.parametrize("phase", ALL[:-1])
def test_keys_under_way_wait_for_no_partition_that_is_reassigned_meanwhile(phase: KeysPhase) -> None:
    cluster = ClusterWithData()
    cluster.go_to(phase)
    cluster.reassign((3, 4, 0))
    for _ in range(10):
        if cluster.tenant.keys_phase is KeysPhase.SETTLED:
            break
        cluster.report()
        assert cluster.moving_step().running == 1
    assert cluster.serving(TRANSACTION_TOPIC) == {"west"}
    assert cluster.serving(GROUP_TOPIC) == {"east" if phase in IDS else "west"}


def test_partitions_that_are_elsewhere_move_while_keys_are_handed_over() -> None:
    cluster = ClusterWithData()
    cluster.go_to(KeysPhase.IDS_COPYING)
    cluster.reassign((3, 4, 0))
    cluster.image = caught_up(cluster.image, cluster.topic(cluster.data).partitions[0])
    cluster.report(but=1)
    assert (cluster.moving_step().waiting, cluster.moving_step().running) == (1, 1)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(ALL))
def test_a_tenant_that_is_deleted_on_its_way_is_served_where_it_was(phase: KeysPhase) -> None:
    cluster = Cluster()
    cluster.step()
    cluster.go_to(phase)
    cells = cluster.tenant.ids_cell, cluster.tenant.keys_cell
    cluster.commit(decide_delete_tenant(cluster.image, DeleteTenantRequest(tenant="a"), POLICY).records)
    tenant = cluster.tenant
    assert (tenant.state, tenant.keys_phase, tenant.keys_target) == (TenantState.DELETING, KeysPhase.SETTLED, None)
    assert (tenant.ids_cell, tenant.keys_cell) == cells


def test_when_the_level_is_raised_the_shared_topic_is_divided_and_each_id_stays() -> None:
    """Records of before name no cell of ids. A tenant that has lived elsewhere has them in the first range, until it
    moves, or is gathered."""
    cluster = Cluster(FLEET_LEVEL)
    cluster.phases()
    done = replace(cluster.tenant, state=TenantState.ACTIVE, cell="west", target_cell=None)
    before = cluster.image = replayed(cluster.image, [done.record()])
    image = settled(replayed(before, [FeatureLevelRecord(TIDELOG_VERSION, IDS_LEVEL)]))
    topic = image.topics.by_name[TRANSACTION_TOPIC]
    assert [held.count for held in topic.ranges] == [PARTITIONS] * 2
    for held in topic.ranges:
        replicas = {replica for index in range(held.first, held.end) for replica in topic.partitions[index].replicas}
        assert replicas == set(CELLS[held.cell])
    tenant = tenant_of(image)
    assert (tenant.ids_cell, tenant.keys_cell) == (None, "west"), "its groups stay where they have moved to"
    kept = range_for(topic, tenant)
    assert kept is not None
    assert (kept.first, kept.count) == (0, PARTITIONS), "no id has changed its partition"
    assert image.topics.by_name[GROUP_TOPIC].ranges == before.topics.by_name[GROUP_TOPIC].ranges
    image, reply = created(image, "new", cell="west")
    new = image.tenants[reply.tenant_id]
    assert (new.ids_cell, new.keys_cell) == ("west", "west")
    cluster.image = image
    if kept.cell != "west":
        assert not keys_are_home(image, tenant)
        cluster.image, _ = move(image, "west")
        assert cluster.phases() == IDS
    assert keys_are_home(cluster.image, cluster.tenant)
