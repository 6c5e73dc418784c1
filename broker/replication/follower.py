"""The follower's side of replication, without I/O: what to fetch from one leader, and how to react to its responses.

One incremental fetch session covers all partitions that follow the same leader. A request names only what moved; its
offsets acknowledge everything before. On divergence the follower truncates its log by leader epoch, never to its own
high watermark, and fetches again (KIP-595's form of KIP-101 and KIP-279).

A partition is *asked* for (it is in the leader's session), *resting* after an error or for a throttle (and removed from
the session, because otherwise the leader would answer for it at once), or *unwritten* until its disk has caught up.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import islice

import msgspec

from broker.deadlines import DueHeap
from broker.partitions.partition import Partition
from broker.partitions.replica import FOLLOWER
from broker.partitions.throttles import ReplicationQuota
from common.backoff import Backoff
from common.errors import ErrorCode
from storage.log.leader_epochs import EpochEnd
from wire.hot_codec import ReplicaPart, ReplicatedRow

Key = tuple[bytes, int]
NEVER_SENT = -1
BACKOFF_MIN_S = 0.02
RETRIES_PER_S = 1_000  # over all resting partitions; many of them rest longer ...
REST_MAX_S = 5.0  # ... but at most this long


class Action(Enum):
    """What the driver must do about a row of a response."""

    IGNORE = "ignore"  # of an older epoch or offset; it will be sent again
    APPEND = "append"
    TRUNCATE = "truncate"
    START_AGAIN = "start again"
    START_FROM_TIER = "start from the tier"
    REST = "rest"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """`offset`: where to truncate or start again."""

    action: Action
    offset: int = -1


APPEND, IGNORE = Verdict(Action.APPEND), Verdict(Action.IGNORE)


class Followed:
    """One partition in the link to its leader."""

    __slots__ = ("epoch", "failures", "in_sync", "partition", "rest_until", "sent_epoch", "sent_in", "sent_offset")
    HELD_UP = 4  # number of consecutive failures after which it is reported as held up

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.sent_in = NEVER_SENT  # the link's session to which the next two fields belong
        self.sent_epoch = NEVER_SENT  # -1 while the leader does not know this position
        self.sent_offset = NEVER_SENT
        self.rest_until = 0.0  # loop seconds
        self.failures = 0  # in a row
        self.in_sync = False  # whether it held everything committed at its leader's last response

    def send(self, session: int, offset: int) -> bool:
        """The next fetch of `session` names this position. Returns whether the partition is new to the session."""
        is_new = self.sent_in != session or self.sent_epoch == NEVER_SENT
        self.sent_in, self.sent_epoch, self.sent_offset = session, self.epoch, offset
        return is_new

    def unsend(self, session: int) -> bool:
        """Remove it from the session. Returns whether it was in it."""
        was_sent = self.sent_in == session and self.sent_epoch != NEVER_SENT
        self.sent_epoch = self.sent_offset = NEVER_SENT
        return was_sent

    def appended(self, high_watermark: int) -> None:
        """A response's records were appended; `high_watermark` is the leader's."""
        self.in_sync = self.partition.log.ends.log_end >= high_watermark

    def failed(self) -> int:
        self.failures += 1
        return self.failures

    def recovered(self) -> None:
        self.failures = 0

    def rest(self, until: float) -> None:
        self.rest_until = until


class FetchPlan(msgspec.Struct, frozen=True, gc=False):
    """The next fetch, by topic id."""

    topics: dict[bytes, list[ReplicaPart]]
    forgotten: dict[bytes, list[int]]


class FollowedPartitions:
    """All partitions that follow one leader, and their positions in the fetch session with it."""

    def __init__(self, partition_bytes_max: int, backoff_max_s: float, quota: ReplicationQuota) -> None:
        self._quota = quota
        self._partition_bytes_max = partition_bytes_max
        self._backoff = Backoff(BACKOFF_MIN_S, backoff_max_s)
        self._followed: dict[Key, Followed] = {}
        self._moved: dict[Key, None] = {}
        self._forget: dict[Key, None] = {}
        self._resting: dict[Key, None] = {}
        self._wakes: DueHeap[Key] = DueHeap()  # may contain partitions that are no longer resting
        self._failing: dict[Followed, None] = {}
        self._session = 0  # number of the current session; a new one needs no work per partition
        self._sent_count = 0  # number of partitions in the session

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, partition: Partition) -> bool:
        followed = self._followed.get((partition.topic_id, partition.index))
        return followed is not None and followed.partition is partition

    @property
    def has_moved(self) -> bool:
        """Whether a fetch sent now would have anything new for the leader."""
        return bool(self._moved or self._forget)

    def add(self, partition: Partition) -> None:
        """Follow in the partition's current epoch."""
        key = (partition.topic_id, partition.index)
        self._drop(key)  # the leader keeps the position until the next fetch names it again
        self._followed[key] = Followed(partition)
        self._resting.pop(key, None)
        self._forget.pop(key, None)
        self._moved[key] = None

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        if self._drop(key):
            self._moved.pop(key, None)
            self._resting.pop(key, None)
            self._forget[key] = None

    def _drop(self, key: Key) -> bool:
        followed = self._followed.pop(key, None)
        if followed is None:
            return False
        self._unsend(followed)
        self._failing.pop(followed, None)
        return True

    def session_lost(self) -> None:
        """Begin a new session, in which everything must be named."""
        self._forget.clear()
        self._session += 1
        self._sent_count = 0
        self._moved = dict.fromkeys(self._followed)
        for key in self._resting:
            del self._moved[key]

    def wake_rested(self, now: float) -> None:
        """Fetch partitions again that have rested long enough."""
        while (entry := self._wakes.pop_due(now)) is not None:
            key = entry[2]
            if key in self._resting and self._followed[key].rest_until <= now:
                del self._resting[key]
                self._moved[key] = None

    def next_wake(self) -> float | None:
        """When the first resting partition is due."""
        if not self._resting:  # the usual case; the heap may still hold partitions that no longer rest
            return None
        wakes = self._wakes
        while (entry := wakes.first()) is not None:
            due, _, key = entry
            if key in self._resting and self._followed[key].rest_until == due:
                return due
            wakes.pop_first()
        return None

    def wake(self, followed: Followed, now: float) -> None:
        """Let a resting partition be fetched again from `now` on."""
        followed.rest(now)
        self._wakes.add(now, (followed.partition.topic_id, followed.partition.index))

    def written(self, partition: Partition) -> None:
        """The partition's disk has caught up, so its position may be acknowledged."""
        key = (partition.topic_id, partition.index)
        if key in self._followed and key not in self._resting:
            self._moved[key] = None

    def plan(self, session_is_new: bool, parts_max: int) -> FetchPlan:
        """The content of the next fetch, which then counts as sent. What exceeds `parts_max` waits for the one
        after."""
        topics: dict[bytes, list[ReplicaPart]] = {}
        forgotten: dict[bytes, list[int]] = {}
        quota, session = self._quota, self._session
        exceeded = bool(quota.topics) and quota.is_exceeded
        for key in list(islice(self._moved, parts_max)):
            del self._moved[key]
            followed = self._followed[key]
            if exceeded and not followed.in_sync and quota.covers(followed.partition):
                self._take_out(key, followed, quota.next_look())
                continue
            partition = followed.partition
            log, ends = partition.log, partition.log.ends  # attributes: this runs for every record
            log_end = ends.log_end
            if ends.written < log_end:  # acknowledged when it is written: see `written`
                if self._unsend(followed):
                    self._forget[key] = None
                continue
            self._forget.pop(key, None)
            if followed.send(session, log_end):
                self._sent_count += 1
            generation = partition.tier_generation
            part = ReplicaPart(
                key[1],
                followed.epoch,
                log_end,
                log.leader_epochs.latest_epoch,
                ends.log_start,
                self._partition_bytes_max,
                generation,
                partition.lacks_below if generation else 0,
            )
            topics.setdefault(key[0], []).append(part)
        if session_is_new:
            self._forget.clear()
        for topic_id, index in list(islice(self._forget, parts_max)):
            del self._forget[topic_id, index]
            forgotten.setdefault(topic_id, []).append(index)
        return FetchPlan(topics, forgotten)

    def _unsend(self, followed: Followed) -> bool:
        """Remove it from the session. Returns whether it was in it."""
        was_sent = followed.unsend(self._session)
        self._sent_count -= was_sent
        return was_sent

    @property
    def asks_for_nothing(self) -> bool:
        """Whether the session has no partitions."""
        return not self._sent_count

    def judge(self, row: ReplicatedRow) -> tuple[Followed | None, Verdict]:
        """The reaction to one row of a response."""
        followed = self._followed.get((row.topic, row.partition))
        if followed is None:
            return None, IGNORE
        partition = followed.partition
        log, ends = partition.log, partition.log.ends
        log_end = ends.log_end
        if (
            followed.sent_in != self._session
            or followed.sent_epoch != partition.leader_epoch
            or followed.sent_offset != log_end
            or partition.role is not FOLLOWER
        ):
            return followed, IGNORE
        if not row.error:
            if row.diverging is None:
                return followed, APPEND
            own = log.end_offset_for_epoch(row.diverging[0])
            return followed, Verdict(Action.TRUNCATE, truncation_offset(EpochEnd(*row.diverging), own, log_end))
        if row.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            begin, end = row.log_start_offset, log_end
            is_empty = ends.log_start == end  # an empty log may be above its leader's, and has no epoch then
            if begin > end or (is_empty and 0 <= begin < end):
                return followed, Verdict(Action.START_AGAIN, begin)
        if row.error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            return followed, Verdict(Action.START_FROM_TIER)
        return followed, Verdict(Action.REST)

    def progressed(self, followed: Followed, *, moved: bool, size: int = 0) -> None:
        """A row was handled, and `size` bytes were appended. `moved`: the log end changed, so the next fetch must name
        the partition."""
        quota = self._quota
        if size and quota.topics and quota.covers(followed.partition):
            quota.record(size)
        if followed.failures:
            followed.recovered()
            self._failing.pop(followed, None)
        if moved:
            self._moved[followed.partition.topic_id, followed.partition.index] = None

    def rest(self, followed: Followed, now: float) -> None:
        """Leave the partition alone for a while: twice as long after each failure, and longer if many partitions rest.
        Their leader may still be taking its roles, and rejecting fetches would delay that."""
        key = (followed.partition.topic_id, followed.partition.index)
        pause_s = max(self._backoff.pause_s(followed.failed()), min(len(self._resting) / RETRIES_PER_S, REST_MAX_S))
        self._failing[followed] = None
        self._moved.pop(key, None)
        self._take_out(key, followed, now + pause_s)

    def _take_out(self, key: Key, followed: Followed, until: float) -> None:
        followed.rest(until)
        self._wakes.add(until, key)
        self._unsend(followed)
        self._resting[key] = None
        self._forget[key] = None

    @property
    def held_up_count(self) -> int:
        """Number of partitions whose fetches have failed repeatedly."""
        return sum(followed.failures >= Followed.HELD_UP for followed in self._failing)

    def partitions(self) -> Iterable[Partition]:
        return [followed.partition for followed in self._followed.values()]


def truncation_offset(leaders: EpochEnd, own: EpochEnd, own_end: int) -> int:
    """The offset to which a follower truncates its log. `leaders`: the last common epoch and its end at the leader.

    `own`: the largest epoch up to that one in the follower's log, and its end there. If the follower lacks the leader's
    epoch, it truncates to the end of its own older epoch, and may have to fetch again.
    """
    if own.epoch < 0:
        return max(min(leaders.end_offset, own_end), 0)
    if own.epoch != leaders.epoch:
        return min(own.end_offset, own_end)
    return min(own.end_offset, leaders.end_offset, own_end)
