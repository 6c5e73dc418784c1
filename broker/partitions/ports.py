"""What a broker's replicas ask of the rooms above: of fetches, of ISR changes, of the tier."""

from __future__ import annotations

from typing import Protocol

from broker.partitions.partition import Partition
from broker.partitions.replica_set import IsrProposal
from kraft.image.partitions import PartitionImage


class Following(Protocol):
    """Fetches for the replicas that follow; implemented by `broker.replication.fetchers`."""

    def follow(self, partition: Partition) -> None:
        """Fetch from `partition.leader_id` in `partition.leader_epoch` from now on, and from no other broker."""
        ...

    def unfollow(self, partition: Partition) -> None: ...

    def pause(self, partition: Partition) -> None:
        """Fetch nothing for it before `resume`, from any leader. Answers that are on their way are ignored."""
        ...

    def resume(self, partition: Partition) -> None:
        """Follow its leader again, if it is a follower now and no other pause holds. Once for each `pause`."""
        ...

    def written(self, partition: Partition) -> None:
        """A slow append has reached the page cache, so it may be acknowledged by the next fetch."""
        ...

    def brokers_changed(self) -> None:
        """Addresses of leaders may have changed."""
        ...


class IsrChanges(Protocol):
    """Carries ISR proposals to the controller; implemented by `broker.replication.isr_changes`."""

    def propose(self, partition: Partition, proposal: IsrProposal) -> None: ...


class Tier(Protocol):
    """The tier, where this broker has one; implemented by `broker.tier.service`."""

    def role_changed(self, partition: Partition) -> None:
        """It begins or ceases to lead, leads in a new epoch, or its topic's settings changed."""
        ...

    def removed(self, partition: Partition) -> None:
        """It is hosted here no longer."""
        ...

    def may_lead(self, partition: Partition, image: PartitionImage) -> bool:
        """False: not before the tier has said what it holds. Then `HostedPartitions.lead_after_all` is called."""
        ...

    async def delete_records(self, partition: Partition, offset: int, timeout_s: float, actor: str = "") -> None:
        """Have the log begin at `offset`, in the tier and here, as `actor` asked. Raises ProtocolError:
        NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, and what its disk says."""
        ...

    def start_from_tier(self, partition: Partition) -> None:
        """A follower's place is below what its leader's disk holds. Cheap; may be called again and again."""
        ...

    def drop_erased(self, partition: Partition) -> None:
        """This disk may hold records that were erased from the tier. Cheap; may be called again and again."""
        ...
