"""The order of a new producer's first batches, where batches wait before they are appended.

A leader orders a producer's batches by their sequences once it has one of them. Before that any sequence may be the
first, because the leader may have forgotten the producer. So if a new producer's batch is rejected for a reason that
passes, those in flight behind it must not be appended before it comes again: `Partition.note_refusal` has them rejected
for a while. What waits may wait for longer than that, so whether it came behind such a batch is asked when it comes.
"""

from __future__ import annotations

from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from records.batch import BatchHeader
from storage.producers.producer_state import NO_EPOCH


def note_refusal(partition: Partition, header: BatchHeader) -> None:
    """This batch was rejected for a reason that passes. Only a new producer's counts: for it other producers may be
    rejected that are only forgotten here, and a client can provoke it as often as it likes."""
    if header.producer_id >= 0 and _is_unknown(partition, header):
        partition.note_refusal()


def check_order(partition: Partition, header: BatchHeader, *, came_behind: bool) -> None:
    """Raises NOT_LEADER_OR_FOLLOWER, which clients retry, for a batch that may not be its producer's first here.
    `came_behind`: `Partition.has_just_refused` when it came."""
    if came_behind and header.base_sequence > 0 and _is_unknown(partition, header):
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "a batch before it was refused")


def _is_unknown(partition: Partition, header: BatchHeader) -> bool:
    return partition.log.producers.epoch_of(header.producer_id) == NO_EPOCH
