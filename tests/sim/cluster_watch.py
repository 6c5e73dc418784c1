"""Looks at the node that has just run, sees what changed, and has the invariants check it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from broker.partitions.partition import Partition
from broker.partitions.replica import Role
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import snapshot_records
from kraft.topic_names import AUDIT_TOPIC, TIER_TOPIC
from tests.sim.audit_watch import AuditComesFirst, AuditShippedOnce
from tests.sim.clean_lives import OnlyLossesAreUnclean
from tests.sim.cluster_settings import MIN_INSYNC
from tests.sim.health_watch import OneBrokerAside
from tests.sim.history import History, TopicPartition
from tests.sim.invariants import (
    AcknowledgedIsCommitted,
    CommittedLog,
    CommittedRecordsStay,
    Coverage,
    GroupsNeverGoBack,
    HighWatermarkNeverFalls,
    InSyncReplicasHoldCommitted,
    LeaderHoldsAllCommitted,
    LeaderKnowsProducers,
    LogsBeginWhereTheyShould,
    LoopsNeverBlock,
    MetadataAgrees,
    OneLeaderPerEpoch,
    PowerPromise,
    ReplicaState,
    SequencesWithoutGap,
    ShownIsCommitted,
)
from tests.sim.loop import SimLoop
from tests.sim.replica_files import ReplicaFiles
from tests.sim.tier_watch import TierWatch
from tests.sim.transaction_watch import TransactionWatch
from tests.sim.world import Node, World

Mark = tuple[Any, int, int, int, int, Role, object]
"""Log, its start and end; high watermark, leader epoch, role, ISR."""


class BrokerMemory:
    """What was last seen of one life of one broker."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.image: MetadataImage | None = None
        self.hosted = 0
        self.partitions: list[Partition] = []
        self.marks: list[Mark | None] = []
        self.states: dict[TopicPartition, ReplicaState] = {}


def only_these_may_lead(leader: int, elr: Sequence[int], brokers: frozenset[int]) -> bool:
    """Whether a partition without a leader (-1) has an ELR of these brokers alone: to elect others may lose records."""
    return leader < 0 and len(elr) > 0 and brokers.issuperset(elr)


class ClusterWatch:
    """One per run. `brokers` maps node names to broker ids."""

    def __init__(
        self,
        world: World,
        history: History,
        brokers: dict[str, int],
        controllers: Sequence[str],
        promise: PowerPromise,
        lossy_topics: Sequence[str] = (),
    ) -> None:
        """`lossy_topics` may lose what was acknowledged: of their data nothing is checked here."""
        self.world, self.history, self.brokers, self.promise = world, history, brokers, promise
        self.committed = CommittedLog()
        self.coverage = Coverage()
        self.metadata = MetadataAgrees()
        self._aside = OneBrokerAside(self.coverage, MIN_INSYNC, tuple(lossy_topics))
        self.newest = MetadataImage()
        self._unclean = OnlyLossesAreUnclean()
        self._one_leader = OneLeaderPerEpoch()
        self._leader_holds = LeaderHoldsAllCommitted(self.committed)
        self._never_falls = HighWatermarkNeverFalls()
        sequences = SequencesWithoutGap()
        self._stays = CommittedRecordsStay(self.committed, sequences)
        self._stays.told = self._told
        self._knows_producers = LeaderKnowsProducers(self.committed, sequences)
        self._in_sync = InSyncReplicasHoldCommitted(self.committed)
        self._acknowledged = AcknowledgedIsCommitted(self.committed)
        self._shown = ShownIsCommitted(self.committed)
        self._groups = GroupsNeverGoBack(history)
        self._blocking = LoopsNeverBlock()
        self._beginnings = LogsBeginWhereTheyShould(self.committed, history)
        self._audit = AuditComesFirst(lambda name: world.nodes[name].device, self.coverage)
        self._shipped = AuditShippedOnce(self.coverage)
        self._lossy = lossy_topics
        self.tier: TierWatch | None = None
        self.transactions: TransactionWatch | None = None
        self._seen = [0, 0, 0, 0]  # acknowledged, shown, group events, log starts
        self._memories: dict[str, BrokerMemory] = {}
        self._controller_images: dict[str, tuple[int, MetadataImage | None]] = {}
        self._files: dict[tuple[int, TopicPartition], ReplicaFiles] = {}
        self._ends: dict[tuple[int, TopicPartition], int] = {}
        self._ids: dict[str, bytes] = {}  # of each topic that was led first under its name
        self._checks: dict[str, Callable[[Node], None]] = dict.fromkeys(brokers, self._broker_ran)
        self._checks |= dict.fromkeys(controllers, self._controller_ran)

    def ran(self, loop: SimLoop) -> None:
        """After each callback of each node."""
        name, world = loop.name, self.world
        node = world.nodes[name]
        if node.loop is not loop:
            return
        check = self._checks.get(name)
        if check is None:
            self._client_ran()
        elif node.program is not None and world.scheduler.failure is None:
            check(node)

    # -- clients

    def _client_ran(self) -> None:
        history, seen = self.history, self._seen
        if self.transactions is not None:
            self.transactions.client_ran()
        if len(history.out_of_range) + len(history.beginnings) != seen[3] and not self._lossy:
            seen[3] = len(history.out_of_range) + len(history.beginnings)
            self._beginnings.check(self.log_start)
        if len(history.acknowledged) != seen[0]:
            for acknowledged in history.acknowledged[seen[0] :]:
                if acknowledged.partition[0] not in self._lossy and not self._is_made_again(acknowledged.partition[0]):
                    self._acknowledged.acknowledged(acknowledged)
            seen[0] = len(history.acknowledged)
        if len(history.shown) != seen[1]:
            for shown in history.shown[seen[1] :]:
                if shown.partition[0] not in self._lossy:
                    self._shown.shown(shown)
            seen[1] = len(history.shown)
        count = len(history.joins) + len(history.syncs) + len(history.offset_fetches)
        if count != seen[2]:
            self._groups.check()
            seen[2] = count

    def log_start(self, partition: TopicPartition) -> int:
        """As committed to the tier's state."""
        tier = self.tier.tier_of(partition) if self.tier is not None else None
        return 0 if tier is None else tier.log_start

    def tier_end(self, partition: TopicPartition) -> int:
        """As committed to the tier's state."""
        tier = self.tier.tier_of(partition) if self.tier is not None else None
        return 0 if tier is None else tier.tier_end

    def is_deleted(self, topic: str) -> bool:
        """Whether there is no such topic; one that is not made yet has no records either. A request that its client has
        given up may make another one of the same name later, which means nothing."""
        return topic not in self.newest.topics or self._is_made_again(topic)

    def _is_made_again(self, topic: str) -> bool:
        """After its first one was deleted. The records that were committed are those of the first."""
        known = self.newest.topics.get(topic)
        return known is not None and not self._is_first(topic, known.topic_id)

    def _is_first(self, topic: str, topic_id: bytes) -> bool:
        return self._ids.get(topic, topic_id) == topic_id

    def waits_for(self, key: TopicPartition, brokers: frozenset[int]) -> bool:
        """Whether that partition cannot have a leader without these brokers, or a loss."""
        partition = self.newest.partition_by_name(*key)
        return partition is not None and only_these_may_lead(partition.leader, partition.elr, brokers)

    def tier_emptied(self, key: TopicPartition) -> None:
        """What is left of the log is on the disks of all replicas that count."""
        self.coverage.add("tiers emptied")
        partition = self.newest.partition_by_name(*key)
        if partition is None or key[0] in self._lossy:
            return
        for role, members in (("ISR", partition.isr), ("ELR", partition.elr)):
            for broker in members:
                if broker not in self.promise.unregistered:
                    self._in_sync.changed(key, broker, role, self.files(broker, key))

    def _is_useless(self, broker: int, key: TopicPartition, files: ReplicaFiles) -> bool:
        """Whether a replica that does not count lacks what the emptied tier lacks: it is to start again."""
        partition = self.newest.partition_by_name(*key)
        counts = partition is None or broker in partition.isr or broker in partition.elr
        return not counts and files.first_offset > self.committed.floors.get(key, 0)

    def _told(self, partition: TopicPartition, files: ReplicaFiles, number: int) -> None:
        """A batch is committed."""
        if partition[0] == AUDIT_TOPIC:
            self._shipped.committed(files.content(number))
        if self.tier is not None and partition[0] == TIER_TOPIC:
            self.tier.committed_state(files.content(number))
            if self.transactions is not None:
                for tier in self.tier.records.tiers.values():
                    self.transactions.copied_to_tier(tier.key, tier.tier_end)
        elif self.transactions is not None:
            self.transactions.committed(partition, files.batches[number], files.content(number))

    # -- controllers

    def _controller_ran(self, node: Node) -> None:
        program: Any = node.program
        image: MetadataImage = program.image
        life, known = self._controller_images.get(node.name, (0, None))
        if image is known and life == node.life_count:
            return
        self._controller_images[node.name] = (node.life_count, image)
        if image.offset > self.newest.offset:
            self._aside.moved(self.newest, image, program.machine.log)
        self._saw_image(node.name, image)

    def _saw_image(self, name: str, image: MetadataImage) -> None:
        if image.offset < 0:
            return
        self.metadata.saw(name, image.offset, fingerprint(image))
        self.metadata.led(str(image.leader_id), image.epoch)
        if image.offset > self.newest.offset:
            before, self.newest = self.newest, image
            self._metadata_moved(before, image)

    def _metadata_moved(self, before: MetadataImage, image: MetadataImage) -> None:
        self._unclean.moved(before, image, self._is_of_this_life)
        returned = [
            broker
            for broker, registered in image.brokers.items()
            if not registered.is_unclean
            and self._is_of_this_life(broker, registered.epoch)
            and self.promise.registered(broker, registered.epoch)
        ]
        whole = True
        for topic_id, topic in image.topics.by_id.items():
            for index, partition in topic.partitions.items():
                if topic.name in self._lossy or not self._is_first(topic.name, topic_id):
                    continue
                whole &= len(partition.isr) == len(partition.replicas)
                old = before.partition(topic_id, index)
                if old is partition and not returned:
                    continue
                key = (topic.name, index)
                if old is not None and old is not partition:
                    self._count_changes(key, old, partition)
                for role, members in (("ISR", partition.isr), ("ELR", partition.elr)):
                    for broker in members:
                        if broker not in self.promise.unregistered:
                            self._in_sync.changed(key, broker, role, self.files(broker, key))
        alive = all(self.world.nodes[name].loop is not None for name in self.brokers)
        if whole and alive and all(image.is_active(broker) for broker in self.brokers.values()):
            self.promise.isr_is_whole()

    def _is_of_this_life(self, broker: int, broker_epoch: int) -> bool:
        """Whether the broker that runs now has registered so; one that died may have asked for it before."""
        name = next(name for name, number in self.brokers.items() if number == broker)
        program = self.world.nodes[name].program
        return program is not None and program.membership.broker_epoch == broker_epoch

    def _count_changes(self, key: TopicPartition, old: Any, new: Any) -> None:
        trace, add = self.world.trace, self.coverage.add
        name = f"{key[0]}-{key[1]}"
        if new.leader_epoch != old.leader_epoch:
            add("elections")
            if new.leader < 0:
                add("leaderless")
            elif new.leader in old.elr and new.leader not in old.isr:
                add("elections from the ELR")
            elif new.leader not in old.isr and new.leader not in new.isr[1:]:
                add("elections of the last known leader")
            trace(f"{name}: leader {old.leader} -> {new.leader}, epoch {new.leader_epoch}")
        if (new.adding, new.removing) != (old.adding, old.removing):
            add("moves end" if not new.is_reassigning else "moves go on" if old.is_reassigning else "moves begin")
            trace(f"{name}: replicas {new.replicas}, adding {new.adding}, removing {new.removing}")
        if new.isr != old.isr:
            add("ISR shrinks" if len(new.isr) < len(old.isr) else "ISR expansions")
        if (new.isr, new.elr) != (old.isr, old.elr):
            trace(f"{name}: ISR {old.isr} -> {new.isr}, ELR {new.elr}")

    # -- brokers

    def files(self, broker: int, partition: TopicPartition) -> ReplicaFiles:
        found = self._files.get((broker, partition))
        if found is None:
            name = next(name for name, number in self.brokers.items() if number == broker)
            directory = f"{partition[0]}-{partition[1]}"
            found = self._files[broker, partition] = ReplicaFiles(self.world.nodes[name].device, directory)
        return found

    def _broker_ran(self, node: Node) -> None:
        hosted = node.program.partitions
        memory = self._memories.get(node.name)
        if memory is None or memory.life != node.life_count:
            memory = self._memories[node.name] = BrokerMemory(node.life_count)
        if hosted.image is not memory.image or len(hosted) != memory.hosted:  # a replica may be made, or go, later
            memory.image, memory.hosted = hosted.image, len(hosted)
            self._forget_removed(node.name, hosted.image)
            replicas = [p for p in hosted if is_replica(hosted.image, self.brokers[node.name], p)]
            memory.partitions = [
                partition
                for partition in replicas
                if partition.topic not in self._lossy and self._is_first(partition.topic, partition.topic_id)
            ]
            memory.marks = [None] * len(memory.partitions)
            self._blocking.check(node.name, node.device.blocking_sync_count)
            self._saw_image(node.name, hosted.image)
        marks = memory.marks
        for number, partition in enumerate(memory.partitions):  # after each callback: nothing is called for most
            log, replica_set = partition.log, partition.replica_set
            ends = log.ends
            mark = (
                log,
                ends.log_start,
                ends.log_end,
                partition.high_watermark,
                partition.leader_epoch,
                partition.role,
                None if replica_set is None else replica_set.isr,
            )
            before = marks[number]
            if mark == before:
                continue
            marks[number] = mark
            log.check()
            self._audit.saw(node, (partition.topic, partition.index), log)
            self._see_end(node, partition)
            if self.transactions is not None and (before is None or mark[2] != before[2]):
                key = (partition.topic, partition.index)
                self.transactions.appended(node.name, partition, self.files(self.brokers[node.name], key))
            if before is None or mark[3:] != before[3:]:
                self._partition_changed(node, memory, partition)

    def _forget_removed(self, node: str, image: MetadataImage) -> None:
        """A replica that was moved away gives up its log; should one come back it begins anew."""
        broker = self.brokers[node]
        for key in [key for key in self._ends if key[0] == broker]:
            partition = image.partition_by_name(*key[1])
            if partition is not None and broker not in partition.replicas:
                self.coverage.add("replicas removed")
                del self._ends[key]

    def power_lost(self, broker: int) -> None:
        """Its logs may be shorter from here on."""
        self.may_lack_records(broker)
        for key in [key for key in self._ends if key[0] == broker]:
            del self._ends[key]

    def may_lack_records(self, broker: int) -> None:
        """It lost power, or a fault changed its files."""
        self._unclean.may_lack_records(broker)

    def disk_fails(self, broker: int, fails: bool) -> None:
        self.promise.disk_fails(broker, fails)
        self._unclean.disk_fails(broker, fails)

    def _see_end(self, node: Node, partition: Partition) -> None:
        """Also from one life to the next: what a process wrote before it died is still there."""
        end, broker, key = partition.log.log_end_offset, self.brokers[node.name], (partition.topic, partition.index)
        before, self._ends[broker, key] = self._ends.get((broker, key), 0), end
        if end < before:
            self.coverage.add("truncations")
            self.world.trace(f"{node.name} cuts {key[0]}-{key[1]} to {end}")
            files = self.files(broker, key)
            held, was_useless = list(files.batches), self._is_useless(broker, key, files)
            files.look()
            if not was_useless:
                self._stays.cut(node.name, key, held, end)

    def _partition_changed(self, node: Node, memory: BrokerMemory, partition: Partition) -> None:
        broker, key = self.brokers[node.name], (partition.topic, partition.index)
        if self._ids.setdefault(partition.topic, partition.topic_id) != partition.topic_id:
            return  # it was made again
        replicas = partition.replica_set
        state = ReplicaState(
            node.name,
            broker,
            node.life_count,
            key,
            partition.leader_epoch,
            partition.is_leader,
            partition.high_watermark,
            partition.log.log_end_offset,
            () if replicas is None else replicas.isr,
            1 if replicas is None else replicas.effective_min_insync,
        )
        before, memory.states[key] = memory.states.get(key), state
        if before is not None:
            self._never_falls.moved(before, state)
        files = self.files(broker, key)
        leads = state.is_leader and (
            before is None or not before.is_leader or before.leader_epoch != state.leader_epoch
        )
        if leads:
            self.coverage.add("leaderships")
            self.world.trace(f"{node.name} leads {key[0]}-{key[1]} epoch {state.leader_epoch}, end {state.end_offset}")
            self._one_leader.led(state)
            self._leader_holds.led(state, files)
            last = partition.log.producers.last_records()
            known = {producer: (record.producer_epoch, record.last_data_offset) for producer, record in last.items()}
            self._knows_producers.led(state, known, self.log_start(key))
        if before is None or state.high_watermark != before.high_watermark:
            before_end = self.committed.end(key)
            files.look()
            if state.is_leader or not self._is_useless(broker, key, files):
                self._stays.advanced(state, files)
            if self.committed.end(key) > before_end:
                self.world.trace(f"{node.name}: {key[0]}-{key[1]} is committed up to {state.high_watermark}")
                holders = self._replicas(partition)
                if holders is not None:
                    replica_files = {number: self.files(number, key) for number in holders}
                    self._in_sync.advanced(state, replica_files, self.promise.unregistered)

    def _replicas(self, partition: Partition) -> list[int] | None:
        """To the leader's knowledge, without those that may have given up their logs since: it may not know yet. None
        when that may be all of them, because the topic is deleted."""
        newest = self.newest.partition(partition.topic_id, partition.index)
        if newest is None:
            return None
        known = partition.image.replicas if partition.image is not None else ()
        return [broker for broker in known if broker in newest.replicas]


def is_replica(image: MetadataImage, broker: int, partition: Partition) -> bool:
    found = image.partition(partition.topic_id, partition.index)
    return found is not None and broker in found.replicas


def fingerprint(image: MetadataImage) -> int:
    """The same for equal metadata, in whatever order it was learned."""
    records = sorted(map(msgspec.msgpack.encode, snapshot_records(image)))
    return zlib.crc32(b"".join(records), zlib.crc32(b"%d %d" % (image.epoch, image.next_producer_id)))
