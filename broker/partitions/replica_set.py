"""The arithmetic of one leader: where its followers are, who is in sync, and how far everybody has everything.

Pure: offsets, broker ids and times (loop seconds) go in, numbers and proposals come out.

- The high watermark is the lowest end over the *maximal* ISR, the larger of the committed and the proposed one: a
  replica that may be in the ISR already, or may still be, is waited for (KIP-497).
- It does not advance while the committed ISR is smaller than `min.insync.replicas` (KIP-966).
- One proposal is in flight at a time; what the controller commits replaces it, whatever was asked.

Source: KIP-16 (lag by time), KIP-497 (AlterPartition), KIP-903 (broker epochs), KIP-966 (ELR).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

UNKNOWN_END = -1
NO_BROKER_EPOCH = -1
JOIN_PAUSE_S = 0.3  # after a refusal
JOIN_PATIENCE_S = 1.0  # how long a silent replica about to join holds the high watermark


class FetchingSession(Protocol):
    """The fetch session in which a follower keeps its place; it sees every fetch, also those that move nothing."""

    @property
    def fetched_at(self) -> float: ...


class Held(msgspec.Struct, frozen=True, gc=False):
    """What a follower says of its disk: see `wire.fetch_codec.FetchPart`."""

    tier_generation: int = 0
    lacks_below: int = 0


LACKS_NOTHING = Held()


class Follower:
    """What the leader knows of one other replica in its present epoch."""

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
        "session",
    )

    def __init__(self, node: int, caught_up_at: float) -> None:
        self.node = node
        self.end_offset = UNKNOWN_END
        self.log_start_offset = -1
        self.held = LACKS_NOTHING
        self.broker_epoch = NO_BROKER_EPOCH  # of the life that fetches
        self.caught_up_at = caught_up_at  # when it last had everything
        self.fetched_at = float("-inf")  # when a fetch of its last moved here, or named this partition
        self.leader_end_at_fetch = 0
        self.eligible = False  # alive, unfenced and with room in the life that fetches, as of its last fetch
        self.join_after = float("-inf")  # the controller refused it; not to be proposed before
        self.session: FetchingSession | None = None  # where it keeps its place

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
        """It asked for `offset`, so it holds everything before; `own_end` is the leader's end now. Whether it moved."""
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
        return moved

    def left(self, session: FetchingSession) -> None:
        """It no longer keeps its place in `session`."""
        if self.session is session:
            self.session = None

    def has_fetched_since(self, when: float) -> bool:
        """Whether it has fetched in this epoch at or after `when`, be it without moving here."""
        return self.fetched_at >= when or (self.session is not None and self.session.fetched_at >= when)

    def check_eligible(self, is_eligible: Callable[[int, int], bool]) -> None:
        """`is_eligible(broker, epoch)`: whether the metadata has it for alive in this life."""
        self.eligible = is_eligible(self.node, self.broker_epoch)

    def stayed_caught_up(self, now: float) -> None:
        """It has everything at this moment, though no fetch of it says so."""
        self.caught_up_at = now

    def refused(self, now: float) -> None:
        """The controller does not take it into the ISR."""
        self.join_after = now + JOIN_PAUSE_S


class IsrProposal(NamedTuple):
    """A wished-for ISR with the partition epoch that it was computed on; sorted by broker id."""

    isr: tuple[int, ...]
    partition_epoch: int


class Outlook(Enum):
    """What a review of a led partition found."""

    SETTLED = "settled"  # nothing waits
    UNSETTLED = "unsettled"  # records wait to be committed, or a replica that fetches is out of sync
    QUIET = "quiet"  # only replicas that do not fetch are out of sync
    STARVED = "starved"  # likewise, and too few are in sync


class ReplicaSet:
    """Followers and ISR of one leader in one leader epoch."""

    __slots__ = (
        "_counted",
        "_joining",
        "followers",
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
    ) -> None:
        """`settled` replicas count for `min.insync.replicas`: not those that are being added; None means all."""
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
        self.whole_at = now  # when all of the ISR last had everything
        self._recount()

    def adopt(
        self, replicas: Iterable[int], isr: Iterable[int], partition_epoch: int, settled: int | None = None
    ) -> None:
        """Take over what the controller committed; a proposal on an older partition epoch is over."""
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
        """Take over what the image says."""
        if partition_epoch > self.partition_epoch:
            self.adopt(replicas, isr, partition_epoch, settled)
        elif partition_epoch == self.partition_epoch:  # adopted from the controller's answer, which lacks it
            self.settled = settled

    @property
    def maximal_isr(self) -> frozenset[int]:
        return frozenset(self.isr) | frozenset(self.proposal.isr if self.proposal else ())

    @property
    def effective_min_insync(self) -> int:
        """`min.insync.replicas`, at most what the partition has replicas, without those that are being added."""
        return min(self.min_insync, self.settled)

    @property
    def is_starved(self) -> bool:
        """Whether the committed ISR is too small to commit anything."""
        size = len(self.isr)
        return size < self.min_insync and size < self.settled

    def configure(self, min_insync: int) -> None:
        self.min_insync = min_insync

    def _recount(self) -> None:
        maximal = self.maximal_isr
        self._counted = [f for node, f in self.followers.items() if node in maximal]
        self._joining = [f for node, f in self.followers.items() if node not in maximal]

    # positions ---------------------------------------------------------------------------------------------

    def high_watermark(self, own_end: int, now: float, lag_max_s: float) -> int:
        """How far all that count have everything; -1 when nothing may be committed now."""
        if self.is_starved:
            return UNKNOWN_END
        lowest = own_end
        for follower in self._counted:
            lowest = min(lowest, follower.end_offset)
        for follower in self._joining:  # else one that catches up could chase the high watermark for ever
            if (
                follower.end_offset < lowest
                and follower.eligible
                and now - follower.fetched_at <= JOIN_PATIENCE_S
                and now - follower.caught_up_at <= lag_max_s
            ):
                lowest = follower.end_offset
        return lowest

    def isr_has_fetched_since(self, when: float) -> bool:
        """Whether every follower that may be in the ISR has fetched in this epoch at or after `when`."""
        return all(
            node == self.local
            or ((follower := self.followers.get(node)) is not None and follower.has_fetched_since(when))
            for node in self.maximal_isr
        )

    # the ISR -----------------------------------------------------------------------------------------------

    def grows(self, now: float) -> bool:
        """A record comes after all of the ISR had everything; whether any other replica is to fetch it."""
        self.whole_at = now
        return bool(self._counted or self._joining)

    def note_whole(self, own_end: int, now: float) -> None:
        """Members of the ISR that have everything have it at this moment, though no fetch of theirs says so: in an
        idle partition fetches move nothing. Else the next record would find them behind since they last moved."""
        for follower in self._counted:
            if follower.end_offset >= own_end:
                follower.stayed_caught_up(now)

    def lagging(self, own_end: int, now: float, lag_max_s: float) -> tuple[int, ...]:
        """Members of the ISR that have been behind for too long. One that has everything never lags."""
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
        """Replicas that are neither in the ISR nor proposed for it."""
        return self._joining

    def fetching_outside(self, now: float) -> list[Follower]:
        """Those of them that follow."""
        since = now - JOIN_PATIENCE_S
        return [follower for follower in self._joining if follower.has_fetched_since(since)]

    @property
    def outlook(self) -> Outlook:
        """Where nothing waits to be committed and no replica outside the ISR fetches."""
        if not self._joining:
            return Outlook.SETTLED
        return Outlook.STARVED if self.is_starved else Outlook.QUIET

    def may_join(self, follower: Follower, high_watermark: int, epoch_start: int, now: float) -> bool:
        """Whether a replica outside the ISR has all that is committed and all that was before this epoch."""
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
        """The controller refused: back to the committed ISR, and no joining for a while."""
        if self.proposal == proposal:
            for node in proposal.isr:
                if node not in self.isr and node in self.followers:
                    self.followers[node].refused(now)
            self.proposal = None
            self._recount()
