"""Coordinator epochs of markers, which never fall for a transactional id. Pure.

Partition leaders refuse a marker whose coordinator epoch is below that of the producer's last one. In Apache Kafka it
is the leader epoch of the partition of `__transaction_state`; an id never changes its partition there. Here a tenant's
ids may move to another partition, whose leader epoch may be lower. So each partition has a floor, a record of its log:
it is added to the leader epoch, and raised when ids come from a partition that has used higher epochs.
"""

from __future__ import annotations


def coordinator_epoch(leader_epoch: int, floor: int) -> int:
    return leader_epoch + floor


def raised_floor(floor: int, leader_epoch: int, handed_over: int) -> int:
    """The floor of a partition that is led in `leader_epoch`, once it has ids for which another partition has used
    coordinator epochs up to `handed_over`."""
    return max(floor, handed_over + 1 - leader_epoch)
