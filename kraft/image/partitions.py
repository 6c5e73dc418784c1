"""One partition in the committed metadata."""

from __future__ import annotations

import msgspec

from kraft.records import NO_LEADER, Cause, PartitionChangeRecord, PartitionRecord


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """Immutable; field names are Kafka's.

    `leader`: -1 if there is none. `leader_epoch` grows with each change of the leader, `partition_epoch` with each
    change. `elr`: the eligible leader replicas; `last_known_elr`: those of them that stopped uncleanly (KIP-966).
    `last_known_leader`: kept while there is no leader, else -1. `adding` and `removing`: subsets of `replicas` during a
    reassignment.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def settled_replica_count(self) -> int:
        """Replicas that count for `min.insync.replicas`: not those being added, because otherwise a partition with few
        replicas would reject records while it gets more."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_under_replicated(self) -> bool:
        """Whether the ISR is smaller than the replicas before a reassignment (KIP-352): what still copies for the first
        time is nothing that was lost."""
        return len(self.isr) < self.settled_replica_count

    @classmethod
    def of(cls, record: PartitionRecord) -> PartitionImage:
        return cls(
            record.topic_id,
            record.partition,
            record.replicas,
            record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.adding,
            record.removing,
            record.elr,
            record.last_known_elr,
            record.last_known_leader,
        )

    def record(self) -> PartitionRecord:
        """The whole partition as one record, for snapshots."""
        return PartitionRecord(
            self.topic_id,
            self.partition,
            self.replicas,
            self.isr,
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            self.adding,
            self.removing,
            self.elr,
            self.last_known_elr,
            self.last_known_leader,
            Cause.UNSPECIFIED,
        )

    def changed(self, record: PartitionChangeRecord) -> PartitionImage:
        """The partition after `record`: a given leader increments the leader epoch, any record the partition epoch."""
        leader, leader_epoch = self.leader, self.leader_epoch
        if record.leader is not None:
            leader, leader_epoch = record.leader, leader_epoch + 1
        return PartitionImage(
            self.topic_id,
            self.partition,
            self.replicas if record.replicas is None else record.replicas,
            self.isr if record.isr is None else record.isr,
            leader,
            leader_epoch,
            self.partition_epoch + 1,
            self.adding if record.adding is None else record.adding,
            self.removing if record.removing is None else record.removing,
            self.elr if record.elr is None else record.elr,
            self.last_known_elr if record.last_known_elr is None else record.last_known_elr,
            self.last_known_leader if record.last_known_leader is None else record.last_known_leader,
        )
