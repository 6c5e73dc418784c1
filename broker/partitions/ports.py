"""What replicas need from the rooms above: fetches, ISR changes, the tier."""

from __future__ import annotations

from typing import Protocol

from broker.partitions.partition import Partition
from broker.partitions.replica_set import IsrProposal
from kraft.image.partitions import PartitionImage


class Following(Protocol):
    """Fetches for the replicas that follow; implemented by `broker.replication.fetchers`."""

    def follow(self, partition: Partition) -> None:
        """Start fetching from `partition.leader_id` in `partition.leader_epoch`, and from no other broker."""
        ...

    def unfollow(self, partition: Partition) -> None: ...

    def pause(self, partition: Partition) -> None:
        """Fetch nothing for it until `resume`, from any leader. Responses in flight are ignored."""
        ...

    def resume(self, partition: Partition) -> None:
        """Fetch again if it is a follower and no other pause is in effect. Call once for each `pause`."""
        ...

    def written(self, partition: Partition) -> None:
        """A delayed append has reached the page cache, so the next fetch may acknowledge it."""
        ...

    def brokers_changed(self) -> None:
        """The leaders' addresses may have changed."""
        ...


class IsrChanges(Protocol):
    """Sends ISR proposals to the controller; implemented by `broker.replication.isr_changes`."""

    def propose(self, partition: Partition, proposal: IsrProposal) -> None: ...


class Tier(Protocol):
    """The tier, if this broker has one; implemented by `broker.tier.service`."""

    def role_changed(self, partition: Partition) -> None:
        """The replica became or stopped being leader, leads in a new epoch, or its topic's settings changed."""
        ...

    def removed(self, partition: Partition) -> None:
        """The replica is no longer hosted here."""
        ...

    def may_lead(self, partition: Partition, image: PartitionImage) -> bool:
        """False if the tier must first answer what it holds; it then calls `HostedPartitions.resume_leadership`."""
        ...

    async def delete_records(self, partition: Partition, offset: int, timeout_s: float, actor: str = "") -> None:
        """Move the log start to `offset` in the tier and here, on behalf of `actor`. Raises ProtocolError:
        NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, and disk errors."""
        ...

    def start_from_tier(self, partition: Partition) -> None:
        """A follower's fetch offset is below its leader's local log. Cheap; may be called repeatedly."""
        ...

    def drop_erased(self, partition: Partition) -> None:
        """This disk may hold records that were erased from the tier. Cheap; may be called repeatedly."""
        ...
