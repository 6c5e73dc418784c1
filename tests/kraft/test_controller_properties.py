"""Random histories of brokers, topics and ISR changes: what must hold after every step, whatever came before."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.batches import Batch, BatchHeader, BatchKind, MetadataRecord, encode_batch
from kraft.controller.broker_removal import removal_piece
from kraft.controller.brokers import decide_heartbeat, decide_registration, decide_unregister, fence
from kraft.controller.policy import ControllerPolicy, min_insync_replicas
from kraft.controller.reassignment import cancel_reassignment, start_reassignment
from kraft.controller.state_machine import MetadataStateMachine, Verdict
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot, snapshot_records
from kraft.metadata_log import MetadataLog, unframe_batches
from kraft.records import NO_LEADER, Cause, LeaderChangeRecord
from tests.kraft.decisions import (
    changes_to_preferred_leaders,
    decide_alter_partition,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
    decide_incremental_alter_configs,
)
from tests.kraft.images import alter_partition, create_topics, heartbeat, new_cluster, new_topic, registration, rng
from wire.messages import (
    CreatePartitionsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
)

BROKERS = st.integers(0, 4)
NAMES = st.sampled_from(["a", "b", "c"])
POLICY = ControllerPolicy(num_partitions=2, default_replication_factor=3, min_insync_replicas=2)
IN_PIECES = dataclasses.replace(POLICY, piece_records_max=1)


class ControllerHistory(RuleBasedStateMachine):
    """Every decision goes through the state machine, as committed bytes."""

    policy = POLICY

    def __init__(self) -> None:
        super().__init__()
        self.machine = MetadataStateMachine(MetadataLog(batches_max=1000))
        self.epoch = 0
        self.sequence = 0
        self.lives = 0
        self.random = rng(7)
        self.before: MetadataImage = self.machine.image
        self.clean_epochs: dict[int, int] = {}

    @property
    def image(self) -> MetadataImage:
        return self.machine.image

    def commit(self, records: list[MetadataRecord], kind: BatchKind = BatchKind.RECORDS) -> None:
        if not records:
            return
        self.before = self.image
        self.sequence += 1
        header = BatchHeader(
            self.epoch, 1, self.sequence, self.image.next_offset, kind, self.image.metadata_version, 1000
        )
        applied = self.machine.apply(self.sequence, encode_batch(Batch(header, records)))
        assert applied.verdict is Verdict.APPLIED

    def decide(self, decision: Decision[MetadataRecord, object]) -> object:
        self.commit(decision.records)
        return decision.reply

    @initialize()
    def begin(self) -> None:
        self.elect()
        self.commit(list(snapshot_records(new_cluster()))[:-1])
        for broker_id in range(3):
            self.register(broker_id, clean=False)
            self.beat(broker_id, shut_down=False)

    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.commit([LeaderChangeRecord(1, self.epoch)], BatchKind.LEADER_CHANGE)

    @rule(broker_id=BROKERS, clean=st.booleans())
    def register(self, broker_id: int, clean: bool) -> None:
        self.lives += 1
        existing = self.image.brokers.get(broker_id)
        previous = existing.epoch if clean and existing is not None else -1
        request = registration(broker_id, self.lives % 250, previous)
        decision = decide_registration(self.image, request, self.policy, has_session=False)
        self.decide(decision)
        registered = self.image.brokers[broker_id]
        assert decision.reply.broker_epoch == registered.epoch
        if previous < 0:
            after = settled(self.image, self.policy)
            assert not any(broker_id in p.isr or broker_id in p.elr for p in after.topics.partitions())

    @rule(broker_id=BROKERS, shut_down=st.booleans())
    def beat(self, broker_id: int, shut_down: bool) -> None:
        request = heartbeat(self.image, broker_id, want_shut_down=shut_down)
        self.decide(decide_heartbeat(self.image, request, self.policy, moves_seen=True))

    @rule(broker_id=BROKERS)
    def fence(self, broker_id: int) -> None:
        broker = self.image.brokers.get(broker_id)
        if broker is not None:
            self.commit(fence(self.image, broker, self.policy, Cause.SESSION_EXPIRED))

    @rule(broker_id=BROKERS)
    def unregister(self, broker_id: int) -> None:
        if broker_id == 4:  # the others stay, or nothing is left to look at
            self.decide(decide_unregister(self.image, UnregisterBrokerRequest(broker_id=broker_id), self.policy))

    @rule(name=NAMES, partitions=st.integers(1, 3), factor=st.integers(1, 4))
    def create(self, name: str, partitions: int, factor: int) -> None:
        self.decide(
            decide_create_topics(
                self.image, create_topics(new_topic(name, partitions, factor)), self.policy, self.random
            )
        )

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[], topic_names=[name], timeout_ms=1)
        self.decide(decide_delete_topics(self.image, request, self.policy))

    @rule(name=NAMES, count=st.integers(1, 5))
    def grow(self, name: str, count: int) -> None:
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=1, validate_only=False)
        self.decide(decide_create_partitions(self.image, request, self.policy, self.random))

    @rule(name=NAMES, value=st.integers(1, 3), unclean=st.booleans())
    def configure(self, name: str, value: int, unclean: bool) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name="min.insync.replicas", config_operation=0, value=str(value)),
            resource.AlterableConfig(
                name="unclean.leader.election.enable", config_operation=0 if unclean else 1, value="true"
            ),
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[resource(resource_type=2, resource_name=name, configs=configs)], validate_only=False
        )
        self.decide(decide_incremental_alter_configs(self.image, request, self.policy))

    @precondition(lambda self: len(self.image.topics) > 0)
    @rule(data=st.data())
    def change_isr(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(list(self.image.topics.partitions())))
        if partition.leader == NO_LEADER:
            return
        isr = [b for b in partition.replicas if b == partition.leader or data.draw(st.booleans())]
        epochs = {b: self.image.brokers[b].epoch if b in self.image.brokers else 0 for b in isr}
        if data.draw(st.integers(0, 4)) == 0:
            stale = data.draw(st.sampled_from(isr))
            epochs[stale] -= 1
        request = alter_partition(self.image, partition, epochs)
        reply = self.decide(decide_alter_partition(self.image, request, 3, self.policy))
        if any(epochs[b] != self.image.brokers[b].epoch for b in isr if b in self.image.brokers):
            assert reply.topics[0].partitions[0].error_code  # type: ignore[attr-defined]

    @precondition(lambda self: len(self.image.topics) > 0)
    @rule(data=st.data())
    def reassign(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(list(self.image.topics.partitions())))
        wanted = data.draw(st.permutations(sorted(self.image.brokers)))[: data.draw(st.integers(1, 3))]
        topic = self.image.topics.by_id[partition.topic_id]
        try:
            record = start_reassignment(self.image, topic, partition, tuple(wanted), self.policy)
        except ProtocolError as error:
            assert error.code is ErrorCode.INVALID_REPLICATION_ASSIGNMENT  # noqa: PT017  it would not be safe
            return
        self.commit([record] if record is not None else [])

    @precondition(lambda self: any(p.is_reassigning for p in self.image.topics.partitions()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from([p for p in self.image.topics.partitions() if p.is_reassigning]))
        topic = self.image.topics.by_id[partition.topic_id]
        try:
            record = cancel_reassignment(self.image, topic, partition, self.policy)
        except ProtocolError as error:
            assert error.code is ErrorCode.INVALID_REPLICATION_ASSIGNMENT  # noqa: PT017  it would not be safe
            return
        self.commit([record] if record is not None else [])
        after = self.image.partition(partition.topic_id, partition.partition)
        assert after is not None
        assert not after.is_reassigning

    @rule()
    def leave(self) -> None:
        """What an event has left to be done goes on, or not yet."""
        self.commit(list(removal_piece(self.image, self.policy)))

    @rule()
    def return_leaders(self) -> None:
        self.commit(list(changes_to_preferred_leaders(self.image, self.policy, 3)))

    @invariant()
    def every_partition_is_sound(self) -> None:
        image = settled(self.image, self.policy)
        for topic in image.topics:
            assert list(topic.partitions) == list(range(len(topic.partitions)))
            for partition in topic.partitions.values():
                sound(image, partition, min_insync_replicas(image, topic.name, self.policy))

    @invariant()
    def epochs_only_grow_and_by_one(self) -> None:
        for old in self.before.topics.partitions():
            new = self.image.partition(old.topic_id, old.partition)
            if new is None:
                continue
            assert new.partition_epoch >= old.partition_epoch
            assert new.leader_epoch >= old.leader_epoch
            if new.leader != old.leader:
                assert new.leader_epoch > old.leader_epoch
                assert new.leader == NO_LEADER or self.image.is_active(new.leader)
            if new != old:
                assert new.partition_epoch > old.partition_epoch

    @invariant()
    def who_may_lead_is_listed_by_its_own_right(self) -> None:
        for broker in self.image.brokers.values():
            assert not (broker.is_active and broker.is_unclean)

    @invariant()
    def a_snapshot_is_the_replay(self) -> None:
        restored = decode_snapshot(encode_snapshot(self.image))
        assert restored == self.image

    def teardown(self) -> None:
        """Whoever replays the served log from the start has the same image."""
        if self.machine.log.start_offset:
            return
        follower = MetadataStateMachine(MetadataLog())
        frames = self.machine.log.read(0, 1 << 30) or b""
        for framed in unframe_batches(memoryview(frames)):
            assert follower.apply(0, encode_batch(framed.batch)).verdict is Verdict.APPLIED
        assert follower.image == self.image


def sound(image: MetadataImage, partition: PartitionImage, min_isr: int) -> None:
    replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
    assert len(replicas) == len(partition.replicas)
    assert replicas
    assert isr <= replicas
    assert elr <= replicas
    assert not isr & elr
    assert set(partition.adding) <= replicas
    assert set(partition.removing) <= replicas
    if partition.leader == NO_LEADER:
        assert not isr
    else:
        assert partition.leader in isr
        assert partition.last_known_leader == NO_LEADER
    assert all(image.is_active(broker) for broker in isr)
    if elr:
        assert len(isr) < max(min_isr, 1) or len(isr) < len(replicas)
    if not isr and not elr:
        assert partition.last_known_leader != NO_LEADER or partition.leader == NO_LEADER


def settled(image: MetadataImage, policy: ControllerPolicy) -> MetadataImage:
    """Once all that brokers leave is done."""
    while records := removal_piece(image, policy):
        assert len(records) <= policy.piece_records_max
        image = replayed(image, records)
    return image


class HistoryInPieces(ControllerHistory):
    """What concerns several partitions is committed for one at a time, with anything in between."""

    policy = IN_PIECES


TestControllerHistory = ControllerHistory.TestCase
TestHistoryInPieces = HistoryInPieces.TestCase
TestControllerHistory.settings = TestHistoryInPieces.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_replaying_records_one_by_one_or_at_once_gives_the_same_image() -> None:
    image = new_cluster()
    for broker in range(3):
        image = replayed(image, decide_registration(image, registration(broker), POLICY, has_session=False).records)
        image = replayed(image, decide_heartbeat(image, heartbeat(image, broker), POLICY, moves_seen=True).records)
    records = decide_create_topics(image, create_topics(new_topic("t", 20, 3)), POLICY, rng()).records
    single = image
    for record in records:
        single = replayed(single, [record])
    assert single == replayed(image, records)
