"""Which replica a consumer should read from (KIP-392): one in its own rack, if one there has what it asks for.

Source: Apache Kafka 4.1, RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReadableReplica(NamedTuple):
    """A replica as its leader knows it. `caught_up_s` is how long ago it last had everything."""

    node: int
    rack: str | None
    log_start_offset: int
    end_offset: int
    caught_up_s: float


def preferred_replica(
    rack: str, leader: int, leader_rack: str | None, followers: Iterable[ReadableReplica], offset: int
) -> int | None:
    """The follower that a client in `rack` should read `offset` from; None for the leader.

    The one with the highest end is taken, then the one that caught up last, then the one with the lowest id.
    """
    if not rack or rack == leader_rack:
        return None
    near = [
        replica
        for replica in followers
        if replica.rack == rack
        and replica.node != leader
        and 0 <= replica.log_start_offset <= offset <= replica.end_offset
    ]
    if not near:
        return None
    return min(near, key=lambda replica: (-replica.end_offset, replica.caught_up_s, replica.node)).node
