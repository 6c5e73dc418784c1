"""The replica from which a consumer should read (KIP-392): one in its own rack that holds the offset.

Source: Apache Kafka 4.1, RackAwareReplicaSelector and ReplicaManager.findPreferredReadReplica.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

STAY_S = 60.0
REDIRECTED_MAX = 10_000
ASKS_AGAIN_S = 1.0


class ReadableReplica(NamedTuple):
    """A replica as its leader knows it. `caught_up_s`: seconds since it last held the whole log."""

    node: int
    rack: str | None
    log_start_offset: int
    end_offset: int
    caught_up_s: float


def preferred_replica(
    rack: str, leader: int, leader_rack: str | None, followers: Iterable[ReadableReplica], offset: int
) -> int | None:
    """The follower from which a client in `rack` should read `offset`; None for the leader.

    The highest end wins, then the most recently caught up, then the lowest id.
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


class _Redirected(NamedTuple):
    offset: int
    stays_until: float


class Redirections:
    """Prevents a consumer from bouncing between a leader and a follower that cannot serve it.

    A follower may have a shorter local log than the leader knows. A consumer that was redirected and returns at the
    same offset is served by the leader itself for a while. Times are loop seconds.
    """

    def __init__(self) -> None:
        self._redirected: dict[Hashable, _Redirected] = {}  # oldest first

    def may_redirect(self, place: Hashable, offset: int, now: float) -> bool:
        """Whether the reader at `place` (a client in a partition) may be redirected; the redirection is recorded."""
        before = self._redirected.pop(place, None)
        if before is not None and now < before.stays_until:
            self._redirected[place] = before
            return False
        returned = before is not None and before.offset == offset
        self._redirected[place] = _Redirected(offset, now + STAY_S if returned else 0.0)
        if len(self._redirected) > REDIRECTED_MAX:
            del self._redirected[next(iter(self._redirected))]
        return not returned


class _Doubt(NamedTuple):
    offset: int
    since: float


class Doubts:
    """Distinguishes consumers that a leader redirected to this follower from those that take it for the leader.

    Both may fetch, without an epoch, an offset that the follower does not have. OFFSET_OUT_OF_RANGE would send the
    former back to the leader, but make the latter reset to `auto.offset.reset`, which skips or repeats records. So both
    first get NOT_LEADER_OR_FOLLOWER: a consumer that took this broker for the leader looks up the leader, and one that
    was redirected fetches again. Times are loop seconds.
    """

    def __init__(self) -> None:
        self._doubts: dict[Hashable, _Doubt] = {}  # oldest first

    def was_sent(self, place: Hashable, offset: int, now: float) -> bool:
        """Whether the reader at `place` has asked for `offset` for so long that it must know the leader by now."""
        before = self._doubts.get(place)
        if before is not None and before.offset == offset and now - before.since < STAY_S:
            return now - before.since >= ASKS_AGAIN_S
        self._doubts.pop(place, None)
        self._doubts[place] = _Doubt(offset, now)
        if len(self._doubts) > REDIRECTED_MAX:
            del self._doubts[next(iter(self._doubts))]
        return False
