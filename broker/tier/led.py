"""One tiered partition that this broker leads, or is about to lead: what it knows of the tier and asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol

from broker.partitions.partition import Partition
from broker.tier.config import TierConfig
from common.errors import OutcomeUnknown, ProtocolError
from object_store.errors import StoreError
from tiering.cluster_file import StaleCluster
from tiering.partition_tier import PartitionTier
from tiering.shard_protocol import Claim, Done, Mutation, RefusalCode, Refused


class TierCalls(Protocol):
    """The tier's shards, wherever they are hosted; `broker.coordination.tier.client.TierClient`.

    Each raises OutcomeUnknown or ProtocolError when the shard cannot be reached in time.
    """

    async def claim(
        self, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused: ...

    async def change(self, view: PartitionTier, request: Mutation, timeout_s: float | None = None) -> Done | Refused:
        """Brings `view` up to date with what was changed. One at a time per view; may be repeated."""
        ...

    async def refresh(self, view: PartitionTier, timeout_s: float | None = None) -> None:
        """Bring `view` up to date."""
        ...

    async def describe(self, topic_id: bytes, partition: int, timeout_s: float | None = None) -> PartitionTier: ...


class Guard(Protocol):
    """Whether the bucket is still this cluster's; `tiering.cluster_file.ClusterGuard`."""

    async def check(self) -> int:
        """Raises StaleCluster, StoreError, ValueError, OutcomeUnknown, ProtocolError."""
        ...


async def check_owned(guard: Guard) -> None:
    """Before anything is written to the bucket or deleted there. Raises NotNow."""
    try:
        await guard.check()
    except (StaleCluster, StoreError, ValueError, OutcomeUnknown, ProtocolError) as error:
        raise NotNow(str(error)) from error


class Fenced(Exception):
    """Somebody else leads this partition in the tier, or its topic was deleted: leave everything as it is."""


class NotNow(Exception):
    """The store or the shard does not answer, or refuses for now: try again later. The text is for the log."""


class Refusal(NotNow):
    """The shard has decided: to ask the same again does not help. `reply` is what it said."""

    def __init__(self, reply: Refused) -> None:
        super().__init__(f"the tier shard refuses: {reply.error}: {reply.text}")
        self.reply = reply


class LedPartition:
    """`view` is None until the claim is answered. Changes of it are asked one at a time, by `change`.

    `held`: the partition does not lead yet, but waits for what the tier says. `trouble` is why nothing goes on, for
    the operator; empty while all is well.
    """

    __slots__ = (
        "_in_doubt",
        "_lock",
        "broker_epoch",
        "copying",
        "failures",
        "held",
        "leader_epoch",
        "look_at",
        "looking_after",
        "next_look",
        "on_unclaimed",
        "partition",
        "retained_at",
        "retry_at",
        "settled",
        "tasks",
        "trouble",
        "view",
    )

    def __init__(self, partition: Partition, leader_epoch: int, broker_epoch: int, *, held: bool) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.broker_epoch = broker_epoch
        self.held = held
        self.view: PartitionTier | None = None
        self.settled = False  # whether log, log start and epochs fit what the tier said
        self.copying = False
        self.looking_after = False  # a claim, or retention and deletion, is under way
        self.failures = 0
        self.retry_at = float("-inf")  # loop seconds
        self.retained_at = float("-inf")
        self.look_at = float("inf")  # loop seconds: when something can be deleted before retention's next turn
        self.next_look = float("-inf")  # loop seconds: when the agenda brings it back
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.on_unclaimed: Callable[[], None] = lambda: None  # it has to be claimed again
        self.trouble = ""
        self._in_doubt = False  # whether the view may be behind what this broker itself has changed
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return repr(self.partition)

    @property
    def known(self) -> PartitionTier:
        """What the tier holds. Raises NotNow before the claim is answered."""
        if self.view is None:
            raise NotNow("the tier has not answered the claim")
        return self.view

    @property
    def is_current(self) -> bool:
        """Whether the partition still leads, or waits to lead, in the epoch of the claim."""
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and (partition.is_leader or self.held)

    @property
    def is_outdated(self) -> bool:
        """Whether tiering was disabled since, and the tier is still to be emptied."""
        return self.known.generation < self.partition.tier_generation

    @property
    def is_disabled(self) -> bool:
        """Whether the tier is to be emptied, or is left as it is until the topic is tiered again."""
        partition = self.partition
        return self.is_outdated or (partition.tier_generation > 0 and not partition.log.config.remote_storage_enable)

    @property
    def copies(self) -> bool:
        """Whether the topic's closed segments are copied."""
        config = self.partition.log.config
        return config.remote_storage_enable and not config.remote_log_copy_disable

    @property
    def may_copy(self) -> bool:
        """Whether the log has closed segments behind the tier's end, and they are to be copied."""
        return self.copies and self.partition.log.active.base_offset > self.known.tier_end_offset

    def tell_end(self) -> None:
        """Have readers and followers hear where the tier ends, unless that end is to go."""
        if self.known.generation == self.partition.tier_generation:
            self.partition.tier_reaches(self.known.tier_end_offset)

    @property
    def uncopied_bytes(self) -> int:
        """Of closed segments that wait to be copied: none do while copying is disabled."""
        if not self.copies:
            return 0
        tier_end = self.view.tier_end_offset if self.view is not None else self.partition.tier_end_offset
        lag, segments = 0, self.partition.log.segments
        for at in range(len(segments) - 2, -1, -1):
            if segments[at].base_offset < tier_end:
                break
            lag += segments[at].size
        return lag

    def is_due(self, config: TierConfig, now: float) -> bool:
        """Whether it is time for retention and deletion."""
        return now >= self.look_at or now - self.retained_at >= config.retention_interval_ms / 1000

    def due_at(self, config: TierConfig, now: float, wall_ms: int) -> float:
        """When that will be, or when its active segment will be too old."""
        log = self.partition.log
        age_ms = wall_ms - log.active.created_ms if log.active.size else 0
        rolls_at = now + max(log.config.tier_roll_ms - age_ms + 1, 0) / 1000
        if not self.copies:
            rolls_at = float("inf")
        return min(self.look_at, max(self.retained_at + config.retention_interval_ms / 1000, now), rolls_at)

    async def change(self, calls: TierCalls, make: Callable[[PartitionTier], Mutation | None]) -> Done | None:
        """Ask for the change that `make` names once it is this one's turn; None when it names none.

        Raises Fenced, NotNow. After NotNow the change may have been made: what `make` sees the next time tells.
        """
        async with self._lock:
            view = self.known
            if not self.is_current:
                raise Fenced
            try:
                if self._in_doubt:
                    await calls.refresh(view)
                    self._in_doubt = False
                request = make(view)
                if request is None:
                    return None
                reply = await calls.change(view, request)
            except (OutcomeUnknown, ProtocolError) as error:
                self._in_doubt = True
                raise NotNow(f"the tier shard does not answer: {error}") from error
            if isinstance(reply, Done):
                return reply
            if reply.error in (RefusalCode.FENCED, RefusalCode.DROPPED):
                raise Fenced(reply.text)
            if reply.error == RefusalCode.NOT_CLAIMED:
                self.view = None
                self.on_unclaimed()
            self._in_doubt = True
            raise Refusal(reply)

    def failed(self, config: TierConfig, now: float, chance: Random, cause: str) -> None:
        """Leave it alone for a while, up to twice as long each time."""
        self.failures += 1
        self.trouble = cause
        self.retry_at = now + config.backoff.jittered_s(self.failures, chance)

    def succeeded(self) -> None:
        self.failures = 0
        self.trouble = ""
        self.retry_at = float("-inf")
