"""A leader's view of its replicas: follower positions, ISR and high watermark. No I/O.

Offsets, broker ids and times (loop seconds) go in, numbers and proposals come out.

- The high watermark is the lowest end in the *maximal* ISR, the union of the committed and the proposed ISR, because
  either may be in effect (KIP-497).
- It does not advance while the committed ISR is smaller than `min.insync.replicas` (KIP-966).
- Only one proposal is in flight at a time. What the controller commits replaces it.

Source: KIP-16 (lag by time), KIP-497 (AlterPartition), KIP-903 (broker epochs), KIP-966 (ELR).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from broker.partitions.ack_delays import AckDelays, AckSample

UNKNOWN_END = -1
NO_BROKER_EPOCH = -1
JOIN_PAUSE_S = 0.3  # before a rejected join is proposed again
CAUGHT_UP_S = 10.0  # a follower outside the ISR is timed if it held everything within this time
JOIN_PATIENCE_S = 1.0  # how long a replica about to join may be silent and still hold back the high watermark


class FetchingSession(Protocol):
    """A follower's fetch session. It sees every fetch, including those in which this partition did not move."""

    @property
    def fetched_at(self) -> float: ...


class Held(msgspec.Struct, frozen=True, gc=False):
    """A follower's report about its disk: see `wire.fetch_codec.FetchPart`."""

    tier_generation: int = 0
    lacks_below: int = 0


LACKS_NOTHING = Held()


class Follower:
    """The leader's knowledge of one other replica in the current epoch."""

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "eligible",
        "end_offset",
        "fetched_at",
        "held",
        "join_after",
        "leader_end_at_fetch",
        "log_start_offset",
        "node",
        "sample",
        "session",
    )

    def __init__(self, node: int, caught_up_at: float) -> None:
        self.node = node
        self.end_offset = UNKNOWN_END
        self.log_start_offset = -1
        self.held = LACKS_NOTHING
        self.broker_epoch = NO_BROKER_EPOCH  # from its latest fetch
        self.caught_up_at = caught_up_at  # when it last held the whole log
        self.fetched_at = float("-inf")  # when a fetch last moved its position or named this partition
        self.leader_end_at_fetch = 0
        self.eligible = False  # alive, unfenced and with room, with this broker epoch, as of its last fetch
        self.join_after = float("-inf")  # not proposed before this time, because the controller rejected it
        self.session: FetchingSession | None = None  # the session that includes this partition
        self.sample: AckSample | None = None  # an append whose acknowledgement is timed

    def fetched(
        self,
        offset: int,
        log_start_offset: int,
        broker_epoch: int,
        session: FetchingSession | None,
        tier_generation: int,
        lacks_below: int,
        own_end: int,
        now: float,
    ) -> bool:
        """Record a fetch at `offset`, which acknowledges everything before; `own_end` is the leader's end now. Return
        whether its position moved."""
        if offset >= own_end:
            self.caught_up_at = now
        elif offset >= self.leader_end_at_fetch and self.fetched_at > self.caught_up_at:
            self.caught_up_at = self.fetched_at
        moved = self.end_offset != offset
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.held = Held(tier_generation, lacks_below) if tier_generation or lacks_below else LACKS_NOTHING
        self.broker_epoch = broker_epoch
        self.session = session
        self.fetched_at = now
        self.leader_end_at_fetch = own_end
        if self.sample is not None and offset >= self.sample.end_offset:
            self.sample.acknowledged(now)
            self.sample = None
        return moved

    def time_ack(self, delays: AckDelays, end_offset: int, now: float) -> None:
        """Time how long it takes to acknowledge everything before `end_offset`."""
        self.sample = delays.begin(self.node, end_offset, now) or self.sample

    def left(self, session: FetchingSession) -> None:
        """`session` no longer includes this partition."""
        if self.session is session:
            self.session = None

    def has_fetched_since(self, when: float) -> bool:
        """Whether it has fetched in this epoch at or after `when`, even without progress here."""
        return self.fetched_at >= when or (self.session is not None and self.session.fetched_at >= when)

    def check_eligible(self, is_eligible: Callable[[int, int, bool], bool], in_need: bool = False) -> None:
        """`is_eligible(broker, epoch, in_need)`: whether the metadata says that the broker is alive with this epoch and
        may join an ISR. `in_need`: the ISR is too small to commit anything, so that a slow broker may join too."""
        self.eligible = is_eligible(self.node, self.broker_epoch, in_need)

    def stayed_caught_up(self, now: float) -> None:
        """It holds the whole log now, although no fetch says so."""
        self.caught_up_at = now

    def refused(self, now: float) -> None:
        """The controller rejected it for the ISR."""
        self.join_after = now + JOIN_PAUSE_S


class IsrProposal(NamedTuple):
    """A proposed ISR, sorted by broker id, and the partition epoch that it is based on."""

    isr: tuple[int, ...]
    partition_epoch: int


class ReviewResult(Enum):
    """Result of the review of a led partition."""

    SETTLED = "settled"  # nothing to do
    UNSETTLED = "unsettled"  # records wait to be committed, or a replica that fetches is out of sync
    QUIET = "quiet"  # only replicas that do not fetch are out of sync
    MOVING = "moving"  # as QUIET, and all of these are being added by a reassignment
    STARVED = "starved"  # as QUIET, and the ISR is too small to commit


class ReplicaSet:
    """Followers and ISR of one leader in one leader epoch."""

    __slots__ = (
        "_counted",
        "_delays",
        "_joining",
        "followers",
        "is_starved",
        "isr",
        "local",
        "min_insync",
        "partition_epoch",
        "proposal",
        "settled",
        "whole_at",
    )

    def __init__(
        self,
        local: int,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        min_insync: int,
        now: float,
        settled: int | None = None,
        delays: AckDelays | None = None,
    ) -> None:
        """`settled`: number of replicas that count for `min.insync.replicas`, which excludes those being added; None:
        all. `delays`: where acknowledgements are timed, if they are."""
        self._delays = delays
        self.local = local
        self.isr = tuple(isr)
        members = self.isr
        self.followers = {
            node: Follower(node, now if node in members else float("-inf")) for node in replicas if node != local
        }
        self.settled = len(self.followers) + 1 if settled is None else settled
        self.partition_epoch = partition_epoch
        self.min_insync = min_insync
        self.proposal: IsrProposal | None = None
        self.whole_at = now  # when the whole ISR last held the whole log
        self._recount()

    def adopt(
        self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, settled: int | None = None
    ) -> None:
        """Apply what the controller committed. A proposal based on an older partition epoch ends."""
        followers = self.followers
        self.followers = {
            node: followers.get(node) or Follower(node, float("-inf")) for node in replicas if node != self.local
        }
        self.settled = len(self.followers) + 1 if settled is None else settled
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.proposal = None
        self._recount()

    def adopt_image(self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, settled: int) -> None:
        """Apply the metadata image."""
        if partition_epoch > self.partition_epoch:
            self.adopt(replicas, isr, partition_epoch, settled)
        # already applied from the controller's response, which does not have `settled`
        elif partition_epoch == self.partition_epoch:
            self.settled = settled
            self._recount()

    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.isr) | frozenset(self.proposal.isr if self.proposal else ())

    @property
    def effective_min_insync(self) -> int:
        """`min.insync.replicas`, but at most the number of replicas, without those being added."""
        return min(self.min_insync, self.settled)

    def configure(self, min_insync: int) -> None:
        self.min_insync = min_insync
        self._recount()

    def _recount(self) -> None:
        size = len(self.isr)
        self.is_starved = size < self.min_insync and size < self.settled
        """Whether the committed ISR is too small to commit anything."""
        maximal = self.maximal_isr
        self._counted = [f for node, f in self.followers.items() if node in maximal]
        self._joining = [f for node, f in self.followers.items() if node not in maximal]

    # positions ---------------------------------------------------------------------------------------------

    def high_watermark(self, own_end: int, now: float, lag_max_s: float) -> int:
        """The lowest end of all replicas that count; -1 if nothing may be committed now."""
        if self.is_starved:
            return UNKNOWN_END
        lowest = own_end
        for follower in self._counted:
            lowest = min(lowest, follower.end_offset)
        for follower in self._joining:  # otherwise a replica that catches up might never reach the high watermark
            if (
                follower.end_offset < lowest
                and follower.eligible
                and now - follower.fetched_at <= JOIN_PATIENCE_S
                and now - follower.caught_up_at <= lag_max_s
            ):
                lowest = follower.end_offset
        return lowest

    def low_watermark(self, own_start: int, is_alive: Callable[[int], bool]) -> int:
        """The lowest log start of the leader, which is `own_start`, and of its live followers."""
        live = (one.log_start_offset for one in self.followers.values() if is_alive(one.node))
        return min(own_start, min(live, default=own_start))

    def isr_has_fetched_since(self, when: float) -> bool:
        """Whether every follower in the maximal ISR has fetched in this epoch at or after `when`."""
        return all(
            node == self.local
            or ((follower := self.followers.get(node)) is not None and follower.has_fetched_since(when))
            for node in self.maximal_isr
        )

    # the ISR -----------------------------------------------------------------------------------------------

    def appended(self, end_offset: int, was_whole: bool, now: float) -> bool:
        """Records up to `end_offset` are appended; `was_whole`: the whole ISR held everything before. Returns whether
        this begins a time in which other replicas must fetch."""
        delays = self._delays
        if delays is not None and now >= delays.due_s:
            self._time_acks(delays, end_offset, now)
        if not was_whole:
            return False
        self.whole_at = now
        return bool(self._counted or self._joining)

    def _time_acks(self, delays: AckDelays, end_offset: int, now: float) -> None:
        """Time the acknowledgement of an append by all followers but those that still catch up: how long these need
        shows the size of what they copy."""
        delays.timed(now)
        for follower in self.followers.values():
            if follower.node in self.isr or now - follower.caught_up_at <= CAUGHT_UP_S:
                follower.time_ack(delays, end_offset, now)

    def note_whole(self, own_end: int, now: float) -> None:
        """Mark ISR members that hold the whole log as caught up now. In an idle partition their fetches do not name it,
        so the next record would find them lagging since their last progress."""
        for follower in self._counted:
            if follower.end_offset >= own_end:
                follower.stayed_caught_up(now)

    def lagging(self, own_end: int, now: float, lag_max_s: float) -> tuple[int, ...]:
        """ISR members that have been behind for too long. A member that holds the whole log never lags."""
        since = now - lag_max_s
        if self.whole_at >= since:
            return ()
        followers = self.followers
        return tuple(
            node
            for node in self.isr
            if node != self.local
            and (follower := followers.get(node)) is not None
            and follower.end_offset < own_end
            and follower.caught_up_at < since
        )

    @property
    def outside(self) -> Sequence[Follower]:
        """Replicas that are neither in the ISR nor in the proposal."""
        return self._joining

    @property
    def is_under_replicated(self) -> bool:
        """Whether fewer are in the ISR or the proposal than there were replicas before a reassignment (KIP-352)."""
        return len(self.followers) + 1 - len(self._joining) < self.settled

    def fetching_outside(self, now: float) -> list[Follower]:
        """Replicas outside the ISR that are fetching."""
        since = now - JOIN_PATIENCE_S
        return [follower for follower in self._joining if follower.has_fetched_since(since)]

    @property
    def outlook(self) -> ReviewResult:
        """The outlook if no record waits to be committed and no replica outside the ISR fetches."""
        if not self._joining:
            return ReviewResult.SETTLED
        if self.is_starved:
            return ReviewResult.STARVED
        return ReviewResult.QUIET if self.is_under_replicated else ReviewResult.MOVING

    def may_join(self, follower: Follower, high_watermark: int, epoch_start: int, now: float) -> bool:
        """Whether a replica outside the ISR holds everything committed and everything from before this epoch."""
        return (
            self.proposal is None
            and follower.eligible
            and follower.node not in self.isr
            and follower.end_offset >= high_watermark
            and follower.end_offset >= epoch_start
            and follower.join_after <= now
        )

    def propose_join(self, node: int) -> IsrProposal:
        return self._propose((*self.isr, node))

    def propose_leave(self, nodes: Iterable[int]) -> IsrProposal:
        leaving = frozenset(nodes)
        return self._propose(tuple(node for node in self.isr if node not in leaving))

    def _propose(self, isr: tuple[int, ...]) -> IsrProposal:
        self.proposal = IsrProposal(tuple(sorted(isr)), self.partition_epoch)
        self._recount()
        return self.proposal

    def withdraw(self, proposal: IsrProposal, now: float) -> None:
        """The controller rejected the proposal: return to the committed ISR and propose no join for a while."""
        if self.proposal == proposal:
            for node in proposal.isr:
                if node not in self.isr and node in self.followers:
                    self.followers[node].refused(now)
            self.proposal = None
            self._recount()
