"""All replicas that one broker hosts, by topic name and by id, and the application of metadata changes to them.

`apply` turns a metadata delta into role changes. Its cost depends on the size of the change, and it touches the disk
only for new and removed replicas. A few changes are made at once, thousands in slices of the event loop
(`role_changes.py`). Meanwhile `image` is ahead of the roles, and a replica that is still waiting answers as if the
change had not arrived. Other rooms are notified after a change is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from broker.partitions.ack_delays import AckDelays
from broker.partitions.log_settings import LogSettings
from broker.partitions.long_lived import LongLived
from broker.partitions.partition import Partition
from broker.partitions.ports import Following, IsrChanges, Tier
from broker.partitions.replica import Replica, Role
from broker.partitions.replica_set import IsrProposal, ReviewResult
from broker.partitions.role_changes import Key, RoleChanges
from broker.partitions.throttles import ReplicationThrottles
from common.errors import ErrorCode, ProtocolError
from common.node_settings.replication import ReplicationSettings
from common.pacing import Pacer, Work
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.records import ResourceType
from storage.audit.audit_trail import AuditPending
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import HIGH_WATERMARKS
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

ROOM_PAUSE_S = 1.0  # between two attempts to create replicas that found no room on the disk
OPEN_COST = 300  # of a new replica, in the pacer's units
MANY_REPLICAS = 250
# of a replica that takes new settings; of a stray directory; of a replica that goes offline
CONFIGURE_COST, STRAY_LOOK_COST, OFFLINE_COST = 5, 2, 10

LeadershipListener = Callable[[Partition, int | None], None]
"""Called with the leader epoch when this broker becomes leader, with None when it stops leading."""


class HostedPartitions:
    """All partitions that this broker hosts, by topic and index. Implements `PartitionHost` for each of them."""

    def __init__(
        self,
        node_id: int,
        logs: LogDirectory,
        settings: LogSettings,
        now: Callable[[], float],
        replication: ReplicationSettings,
        pacer: Pacer,
        isr_changes: IsrChanges | None = None,
    ) -> None:
        self.node_id = node_id
        self.image: MetadataImage = EMPTY_IMAGE
        self.by_name: dict[bytes, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        self._count = 0
        self.led: dict[Partition, None] = {}
        self._led_changes = 0
        self.unsettled_partitions: dict[Partition, None] = {}
        # settled except for replicas that do not fetch; value: whether it is starved
        self.quiet_partitions: dict[Partition, bool] = {}
        self.quiet_moves: dict[Partition, None] = {}  # those of them that lack only what a reassignment adds
        self._busy: dict[Replica, tuple[int, int]] = {}
        self.ack_delays = AckDelays()
        self.following: Following | None = None
        self.tier: Tier | None = None
        self._isr_changes = isr_changes
        self.offline = False
        self.roles = RoleChanges(node_id, pacer, self, logs.prepared)
        self._leaving: dict[Key, PartitionLog] = {}  # removed replicas and strays whose deletion waits for the audit
        self.roomless: dict[Key, None] = {}  # replicas that found no room on the disk; creation is retried
        self._room_timer: asyncio.TimerHandle | None = None
        self._pacer = pacer
        self._long_lived = LongLived(MANY_REPLICAS)
        self._logs = logs
        self._settings = settings
        self.now = now
        self.throttles = ReplicationThrottles(node_id, now, lambda image: settings.under(image, replication))
        self._lag_max_s = replication.replica_lag_time_max_ms / 1000
        self._leadership: dict[str, list[LeadershipListener]] = {}

    def set_fetchers(self, following: Following) -> None:
        """Set the fetchers. Called once, before the first `apply`, because the fetchers need these partitions."""
        self.following = following

    def set_tier(self, tier: Tier) -> None:
        """Set the tier. Called once, if there is an object store, because the tier needs these partitions."""
        self.tier = tier

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_id.values():
            yield from partitions.values()

    @property
    def rolled_logs(self) -> dict[tuple[str, int], None]:
        return self._logs.context.rolled

    @property
    def transactional_logs(self) -> dict[tuple[str, int], None]:
        return self._logs.context.transactional

    @property
    def position_changes(self) -> int:
        """A counter that grows whenever a high watermark moves or a leadership begins or ends."""
        return self._led_changes + self._logs.context.checkpoints.changes(HIGH_WATERMARKS)

    def __len__(self) -> int:
        return self._count

    # finding -----------------------------------------------------------------------------------------------

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self.by_name.get(topic.encode())
        return partitions.get(index) if partitions is not None else None

    def find(self, topic: str, index: int) -> Partition:
        """The partition. Raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION if the cluster has no such partition,
        NOT_LEADER_OR_FOLLOWER if this broker has no replica of it, KAFKA_STORAGE_ERROR if this broker's disk has failed
        or has no room for the replica."""
        partition = self.get(topic, index)
        if partition is None:
            raise ProtocolError(self.missing_by_name(topic.encode(), index))
        if self.offline:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
        return partition

    def find_leader(self, topic: str, index: int, current_leader_epoch: int = -1) -> Partition:
        """As `find`, and checks that this broker leads it in `current_leader_epoch` (-1: any)."""
        partition = self.find(topic, index)
        partition.check_epoch(current_leader_epoch)
        if not partition.is_leader:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def missing_by_name(self, topic: bytes, index: int) -> ErrorCode:
        """The error for a partition that is not hosted here."""
        image = self.image.topics.get(topic.decode(errors="replace"))
        if image is None or index not in image.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._missing((image.topic_id, index))

    def missing_by_id(self, topic_id: bytes, index: int, prefix: bytes = b"") -> ErrorCode:
        """As `missing_by_name`. A topic whose name does not begin with `prefix` is answered as if it did not exist."""
        image = self.image.topics.get_by_id(topic_id)
        if image is None or (prefix and not image.name.encode().startswith(prefix)):
            return ErrorCode.UNKNOWN_TOPIC_ID
        if index not in image.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._missing((topic_id, index))

    def _missing(self, key: Key) -> ErrorCode:
        """KAFKA_STORAGE_ERROR if the replica belongs here but found no room yet, otherwise NOT_LEADER_OR_FOLLOWER."""
        return ErrorCode.KAFKA_STORAGE_ERROR if key in self.roomless else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # PartitionHost ------------------------------------------------------------------------------------------

    def unsettled(self, partition: Partition) -> None:
        self.quiet_partitions.pop(partition, None)
        self.quiet_moves.pop(partition, None)
        self.unsettled_partitions[partition] = None

    def follower_written(self, partition: Partition) -> None:
        if self.following is not None:
            self.following.written(partition)

    def isr_proposed(self, partition: Partition, proposal: IsrProposal) -> None:
        if self._isr_changes is not None:
            self._isr_changes.propose(partition, proposal)

    def review(self, partitions_max: int, stalled_s: float = 0.0) -> None:
        """Review up to `partitions_max` unsettled partitions, the longest waiting first.

        `stalled_s`: see `Partition.review`.
        """
        self._review(self.unsettled_partitions, partitions_max, stalled_s)

    def review_quiet(self, partitions_max: int, stalled_s: float = 0.0) -> None:
        """Review up to `partitions_max` quiet partitions. There may be very many of them for a very long time.

        When a replica returns, its first fetch names its partitions and makes them unsettled again.
        """
        self._review(self.quiet_partitions, partitions_max, stalled_s)

    def _review(self, waiting: Iterable[Partition], partitions_max: int, stalled_s: float) -> None:
        for partition in list(islice(waiting, partitions_max)):
            self._settled(partition)
            outlook = partition.review(stalled_s)
            if outlook is ReviewResult.UNSETTLED:
                self.unsettled_partitions[partition] = None
            elif outlook is not ReviewResult.SETTLED:
                self.quiet_partitions[partition] = outlook is ReviewResult.STARVED
                if outlook is ReviewResult.MOVING:
                    self.quiet_moves[partition] = None

    def _settled(self, partition: Partition) -> None:
        self.unsettled_partitions.pop(partition, None)
        self.quiet_partitions.pop(partition, None)
        self.quiet_moves.pop(partition, None)

    def busy(self, replica: Replica) -> None:
        self._busy[replica] = (replica.bytes_in, replica.bytes_out)

    def take_busy(self) -> dict[Replica, tuple[int, int]]:
        """The replicas whose bytes have moved since they were last taken, with their counters as they were then.

        Ask each one for `look_at_bytes`: only then do further bytes of it make it busy again.
        """
        busy, self._busy = self._busy, {}
        return busy

    def is_alive(self, node: int) -> bool:
        broker = self.image.brokers.get(node)
        return broker is not None and not broker.fenced

    def is_eligible(self, node: int, broker_epoch: int, in_need: bool) -> bool:
        broker = self.image.brokers.get(node)
        if broker is None or broker.epoch != broker_epoch:
            return False
        return broker.may_join_in_need if in_need else broker.may_join

    def on_leadership(self, topic: str, listener: LeadershipListener) -> None:
        """Call `listener` whenever this broker becomes or stops being leader of a partition of `topic`."""
        self._leadership.setdefault(topic, []).append(listener)

    # metadata ----------------------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply `delta`, which led to `image`. Raises nothing: if the disk fails, the broker goes offline."""
        self.image = image
        if self.roles.stopped or self.offline:
            return
        if delta.brokers_changed and self.following is not None:
            self.following.brokers_changed()
        self.roles.add(delta)

    @property
    def applied_offset(self) -> int:
        """The metadata offset up to which all roles are taken."""
        return self.roles.applied_offset

    def stop(self) -> None:
        """Stop taking roles. Changes that still wait are dropped."""
        self.roles.stop()
        if self._room_timer is not None:
            self._room_timer.cancel()
            self._room_timer = None
        self.throttles.close()

    def take_role(self, key: Key) -> int:
        """See `RoleTaker`."""
        if key in self._leaving:
            self._finish_deletion(key)
        partition_image = self.image.partition(*key)
        if partition_image is None or self.node_id not in partition_image.replicas:
            self._delete(*key)
            return 0
        is_new = self._find(key) is None
        try:
            self._hosted(partition_image)
        except AuditPending:
            raise
        except ProtocolError:
            if self._logs.offline is not None:
                raise
            self._wait_for_room(key)
            return OPEN_COST
        if partition_image.leader == self.node_id:
            self._lead(partition_image)
        else:
            self._follow(partition_image)
        return OPEN_COST if is_new else 0

    def _wait_for_room(self, key: Key) -> None:
        """Retry later: the disk has no room, or the process no file descriptors, for another log. Other replicas go
        on."""
        self.roomless[key] = None
        if self._room_timer is None:
            self._room_timer = asyncio.get_running_loop().call_later(ROOM_PAUSE_S, self._try_roomless)

    def _try_roomless(self) -> None:
        waiting, self.roomless, self._room_timer = self.roomless, {}, None
        if self.roles.stopped or self.offline:
            return
        logger.warning("replicas without room for their logs are tried again", extra={"count": len(waiting)})
        self.roles.add_keys(waiting)

    def go_offline(self) -> None:
        """Stop serving all replicas, because the log directory has failed."""
        self.offline = True
        self.roles.clear()
        self.roomless.clear()
        self._pacer.start(self._all_go_offline(), "offline", own=True)

    def _all_go_offline(self) -> Work[None]:
        """Leaders first, because clients wait for them."""
        for partition in [*self.led, *self]:
            was_leader = partition.is_leader
            if was_leader or partition.role is not Role.OFFLINE:
                partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)
                if self.following is not None:
                    self.following.unfollow(partition)
            if was_leader:
                self._leadership_changed(partition, None)
            yield OFFLINE_COST

    def set_aside_strays(self) -> Work[AuditPending | None]:
        """Set aside directories of deleted topics and of other brokers' replicas. Called when all metadata is known.

        If some of them wait for the audit, returns how to wait for it; then call this again.
        """
        waits: AuditPending | None = None
        for (topic, index), log in list(self._logs.logs.items()):
            topic_image = self.image.topics.get(topic)
            partition = topic_image.partitions.get(index) if topic_image is not None else None
            cost = STRAY_LOOK_COST
            if (
                topic_image is None
                or topic_image.topic_id != log.topic_id
                or partition is None
                or self.node_id not in partition.replicas
            ):
                cost = OPEN_COST
                try:
                    self._logs.set_stray(log)
                    logger.warning("a stray log is set aside", extra={"topic": topic, "partition": index})
                except AuditPending as pending:
                    waits = pending
            yield cost
        return waits

    def _find(self, key: Key) -> Partition | None:
        partitions = self.by_id.get(key[0])
        return partitions.get(key[1]) if partitions is not None else None

    def _hosted(self, partition_image: PartitionImage) -> Partition:
        partition = self._find((partition_image.topic_id, partition_image.partition))
        return partition if partition is not None else self._open(partition_image)

    def _open(self, partition_image: PartitionImage) -> Partition:
        topic_image = self.image.topics.by_id[partition_image.topic_id]
        topic, topic_id, index = topic_image.name, topic_image.topic_id, partition_image.partition
        log = self._logs.get(topic, index)
        if log is not None and log.topic_id != topic_id:
            if (log.topic_id, index) in self._leaving:
                self._finish_deletion((log.topic_id, index))
            else:
                logger.warning("a stray log is set aside", extra={"topic": topic, "partition": index})
                self._logs.set_stray(log)
            log = None
        checkpointed = 0
        config = self._settings.config_of(self.image, topic)
        if log is None:
            log = self._logs.create_log(topic, index, topic_id, config)
        else:
            checkpointed = self._logs.high_watermark_checkpoint(topic, index)
            log.update_config(config)
        partition = Partition(topic, index, topic_id, log, checkpointed, self.node_id, self, self.now, self._lag_max_s)
        hosted = self.by_id.get(topic_id)
        if hosted is None:  # a deleted topic of the same name may still exist until its deletion is applied
            hosted = self.by_id[topic_id] = self.by_name[partition.name] = {}
        hosted[index] = partition
        self._count += 1
        self._long_lived.made()
        return partition

    def _lead(self, partition_image: PartitionImage) -> None:
        partition = self._hosted(partition_image)
        if not partition.is_leader and self.following is not None:
            self.following.unfollow(partition)
        led = partition.is_leader
        is_new = not led or partition.leader_epoch != partition_image.leader_epoch
        if is_new and not self._may_lead(partition, partition_image):
            partition.await_tier(partition_image)
            if led:  # another broker led in between, in an epoch that this broker did not see
                self._leadership_changed(partition, None)
        elif partition.become_leader(partition_image):
            self._leadership_changed(partition, partition.leader_epoch)

    @property
    def _has_lost_records(self) -> bool:
        """Whether this broker registered after a loss. Then what names it the leader is from before that, and the
        controllers, which change a few partitions at a time, have yet to come to it."""
        registered = self.image.brokers.get(self.node_id)
        return registered is not None and registered.is_unclean

    def _may_lead(self, partition: Partition, partition_image: PartitionImage) -> bool:
        if self._has_lost_records:
            return False
        if self.tier is not None:
            return self.tier.may_lead(partition, partition_image)
        topic = self.image.topics.by_id[partition.topic_id]
        if not topic.adopts_tier or partition.log.log_end_offset:
            return True
        extra = {"partition": repr(partition), "reason": "tidelog.tier.uri is not set on this broker"}
        logger.error("a restored partition cannot begin without the tier that holds its records", extra=extra)
        return False

    def step_back(self, partition: Partition) -> None:
        """Stop serving as leader until `resume_leadership`, because the log lacks records that the tier holds."""
        if partition.is_leader and partition.image is not None:
            partition.await_tier(partition.image)
            self._leadership_changed(partition, None)

    def resume_leadership(self, partition: Partition) -> None:
        """Resume leadership after `step_back` if the image still names this broker: the tier has answered."""
        image = self.image.partition(partition.topic_id, partition.index)
        if image is None or image.leader != self.node_id or self.roles.stopped or self.offline:
            return
        if self._has_lost_records:
            return
        if self._hosted(image) is partition and partition.become_leader(image):
            self._leadership_changed(partition, partition.leader_epoch)

    def _follow(self, partition_image: PartitionImage) -> None:
        partition = self._hosted(partition_image)
        was_leader = partition.is_leader
        if partition.become_follower(partition_image) and self.following is not None:
            self.following.follow(partition)
        if was_leader and not partition.is_leader:
            self._leadership_changed(partition, None)

    def _delete(self, topic_id: bytes, index: int) -> None:
        hosted = self.by_id.get(topic_id, {})
        partition = hosted.pop(index, None)
        if partition is None:
            return
        self._count -= 1
        if not hosted:
            del self.by_id[topic_id]
            if self.by_name.get(partition.name) is hosted:
                del self.by_name[partition.name]
        was_leader = partition.is_leader
        if self.following is not None:
            self.following.unfollow(partition)
        partition.go_offline(self.missing_by_name(partition.name, index))
        self._settled(partition)
        if was_leader:
            self._leadership_changed(partition, None)
        self._busy.pop(partition, None)
        if self.tier is not None:
            self.tier.removed(partition)
        self._leaving[topic_id, index] = partition.log
        self._finish_deletion((topic_id, index))

    def _finish_deletion(self, key: Key) -> None:
        self._logs.delete_log(self._leaving[key])
        self._leaving.pop(key).ends.notify(None)  # break the reference cycle, see `LongLived`

    def configure(self, delta: MetadataDelta) -> Work[None]:
        """See `RoleTaker`."""
        if not delta.configs_changed:
            return
        yield from self.throttles.configuring(delta.configs_changed, self.image)
        names: Iterable[bytes] = (name.encode() for kind, name in delta.configs_changed if kind is ResourceType.TOPIC)
        if any((ResourceType.BROKER, name) in delta.configs_changed for name in (CLUSTER_DEFAULT, str(self.node_id))):
            names = list(self.by_name)
        for name in names:
            hosted = self.by_name.get(name)
            if hosted:
                config = self._settings.config_of(self.image, name.decode())
                for partition in list(hosted.values()):
                    partition.configure(config)
                    if self.tier is not None and partition.is_leader:
                        self.tier.role_changed(partition)
                    yield CONFIGURE_COST
            yield CONFIGURE_COST

    def _leadership_changed(self, partition: Partition, leader_epoch: int | None) -> None:
        self._led_changes += 1
        self.transactional_logs[partition.topic, partition.index] = None
        if leader_epoch is None:
            self.led.pop(partition, None)
        else:
            self.led[partition] = None
        for listener in self._leadership.get(partition.topic, ()):
            listener(partition, leader_epoch)
        if self.tier is not None:
            self.tier.role_changed(partition)
