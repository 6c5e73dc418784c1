"""One tiered partition that this broker leads, or is about to lead: its view of the tier, and its requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random

from broker.partitions.partition import Partition
from broker.tier.config import TierConfig, WorkKind
from broker.tier.services import Guard, TierCalls
from common.errors import OutcomeUnknown, ProtocolError
from object_store.errors import StoreError
from tiering.bucket.cluster_file import StaleCluster
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Done, Mutation, RefusalCode, Refused


async def check_owned(guard: Guard) -> None:
    """Check that the bucket still belongs to this cluster, before any write or deletion there. Raises NotNow."""
    try:
        await guard.check()
    except (StaleCluster, StoreError, ValueError, OutcomeUnknown, ProtocolError) as error:
        raise NotNow(str(error)) from error


class Fenced(Exception):
    """Another broker leads this partition in the tier, or its topic was deleted: change nothing."""


class NotNow(Exception):
    """The store or the shard does not answer, or rejects for now: retry later. The text is for the log."""


class Refusal(NotNow):
    """The shard has rejected the request; repeating it does not help. `reply` is its answer."""

    def __init__(self, reply: Refused) -> None:
        super().__init__(f"the tier shard refuses: {reply.error}: {reply.text}")
        self.reply = reply


class LedPartition:
    """Requests changes of its view from the shard one at a time, by `change`. Times are loop seconds."""

    __slots__ = (
        "_in_doubt",
        "_lock",
        "_on_unclaimed",
        "broker_epoch",
        "delete_at",
        "failures",
        "held_back",
        "leader_epoch",
        "partition",
        "reconciled",
        "retained_at",
        "retry_at",
        "tasks",
        "trouble",
        "view",
    )

    def __init__(
        self,
        partition: Partition,
        leader_epoch: int,
        broker_epoch: int,
        *,
        held_back: bool,
        on_unclaimed: Callable[[LedPartition], None],
    ) -> None:
        """`on_unclaimed` is called when the shard requires a new claim."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.broker_epoch = broker_epoch
        self.held_back = held_back  # it does not lead yet, but waits for the tier
        self.view: PartitionTier | None = None  # None until the claim is answered
        self.reconciled = False  # whether log, log start and epochs match the tier
        self.tasks: dict[asyncio.Task[None], WorkKind] = {}  # work under way
        self.failures = 0
        self.retry_at = float("-inf")
        self.trouble = ""  # why there is no progress, for the operator; empty if there is
        self.retained_at = float("-inf")  # when retention last ran
        self.delete_at = float("inf")  # when something can be deleted before retention's next run
        self._on_unclaimed = on_unclaimed
        self._in_doubt = False  # whether the view may lack a change that this broker itself made
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return repr(self.partition)

    @property
    def known(self) -> PartitionTier:
        """The tier's state. Raises NotNow before the claim is answered."""
        if self.view is None:
            raise NotNow("the tier has not answered the claim")
        return self.view

    @property
    def is_current(self) -> bool:
        """Whether the partition still leads, or waits to lead, in the epoch of the claim."""
        partition = self.partition
        return partition.leader_epoch == self.leader_epoch and (partition.is_leader or self.held_back)

    @property
    def is_outdated(self) -> bool:
        """Whether tiering was disabled, and the tier is still to be emptied."""
        return self.known.generation < self.partition.tier_generation

    @property
    def is_disabled(self) -> bool:
        """Whether the tier is to be emptied, or stays empty until the topic is tiered again."""
        partition = self.partition
        return self.is_outdated or (partition.tier_generation > 0 and not partition.log.config.remote_storage_enable)

    @property
    def copies(self) -> bool:
        """Whether the topic's closed segments are to be copied."""
        config = self.partition.log.config
        return config.remote_storage_enable and not config.remote_log_copy_disable

    @property
    def may_copy(self) -> bool:
        """Whether the log has closed segments after the tier's end that are to be copied."""
        return self.copies and self.partition.log.active.base_offset > self.known.tier_end_offset

    # leadership --------------------------------------------------------------------------------------------

    def claimed(self, tier: PartitionTier) -> None:
        """The shard has answered the claim with the tier's state."""
        self.view = tier

    def hold_back(self) -> None:
        """The log lacks committed records: do not lead until that has changed."""
        self.held_back = True

    def let_lead(self) -> None:
        self.held_back = False

    def has_reconciled(self) -> None:
        """The log matches the tier: copying, retention and deletion may begin."""
        self.reconciled = True

    def lost(self) -> None:
        """Another leader has claimed the tier: the view is obsolete."""
        self.view = None
        self.reconciled = False

    def announce_end(self) -> None:
        """Notify readers and followers of the tier's end, unless the tier is to be emptied."""
        if self.known.generation == self.partition.tier_generation:
            self.partition.tier_reaches(self.known.tier_end_offset)

    # work --------------------------------------------------------------------------------------------------

    @property
    def is_copying(self) -> bool:
        return WorkKind.COPY in self.tasks.values()

    @property
    def is_maintained(self) -> bool:
        """Whether a claim, retention or deletion is under way; at most one of them is."""
        return any(kind is not WorkKind.COPY for kind in self.tasks.values())

    def began(self, task: asyncio.Task[None], kind: WorkKind) -> None:
        self.tasks[task] = kind

    def ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)

    def cancel_work(self) -> None:
        for task in self.tasks:
            task.cancel()

    def begin_retention(self, now: float) -> bool:
        """Retention and deletion run now. Returns whether a deletion was due by `delete_by`."""
        was_due = self.delete_at <= now
        self.retained_at, self.delete_at = now, float("inf")
        return was_due

    def retain_now(self) -> None:
        """The log start moved: check at once what can be deleted."""
        self.retained_at = float("-inf")

    def delete_by(self, when: float) -> None:
        """Something can be deleted at `when`, before retention's next run."""
        self.delete_at = when

    @property
    def uncopied_bytes(self) -> int:
        """Bytes of closed segments that wait to be copied; 0 while copying is disabled."""
        return sum(self._uncopied())

    @property
    def undecided_bytes(self) -> int:
        """Those of `uncopied_bytes` that wait for the end of a transaction."""
        first = self.partition.log.producers.first_undecided_offset
        return 0 if first is None else sum(self._uncopied(first))

    @property
    def tier_end_offset(self) -> int:
        """Where the tier ends, as far as this leader knows."""
        return self.view.tier_end_offset if self.view is not None else self.partition.tier_end_offset

    def _uncopied(self, decided: int = 0) -> Iterator[int]:
        """Sizes of closed segments that wait to be copied and end above `decided`, the newest first."""
        if not self.copies:
            return
        tier_end = self.tier_end_offset
        segments = self.partition.log.segments
        for at in range(len(segments) - 2, -1, -1):
            if segments[at].base_offset < tier_end or segments[at + 1].base_offset <= decided:
                break
            yield segments[at].size

    def is_due(self, config: TierConfig, now: float) -> bool:
        """Whether retention and deletion are due."""
        return now >= self.delete_at or now - self.retained_at >= config.retention_interval_ms / 1000

    def due_at(self, config: TierConfig, now: float, wall_ms: int) -> float:
        """When they will be due, or when the active segment will be too old."""
        log = self.partition.log
        age_ms = wall_ms - log.active.created_ms if log.active.size else 0
        rolls_at = now + max(log.config.tier_roll_ms - age_ms + 1, 0) / 1000
        if not self.copies:
            rolls_at = float("inf")
        return min(self.delete_at, max(self.retained_at + config.retention_interval_ms / 1000, now), rolls_at)

    async def change(self, calls: TierCalls, make: Callable[[PartitionTier], Mutation | None]) -> Done | None:
        """When this call's turn comes, request the change that `make` returns; None if it returns none.

        Raises Fenced, NotNow. After NotNow the change may have been made: the next call of `make` sees it.
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
                self._on_unclaimed(self)
            self._in_doubt = True
            raise Refusal(reply)

    def waits(self, cause: str) -> None:
        """A step will be retried; `cause` is shown to the operator."""
        self.trouble = cause

    def failed(self, config: TierConfig, now: float, chance: Random, cause: str) -> None:
        """Leave the partition alone for a while, up to twice as long after each failure."""
        self.failures += 1
        self.waits(cause)
        self.retry_at = now + config.backoff.jittered_s(self.failures, chance)

    def succeeded(self) -> None:
        self.failures = 0
        self.trouble = ""
        self.retry_at = float("-inf")


class CopyLag:
    """Bytes of led partitions that the tier does not hold yet, known without a walk over all partitions."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: a monotonic clock in seconds."""
        self._now = now
        self.bytes = 0  # of closed segments, per partition as of the tier's last look at it
        self.undecided_bytes = 0  # those that wait for the end of a transaction
        # Partitions with a lag: both, which segment is next, and since when; those that wait longest come first.
        self._noted: dict[LedPartition, tuple[int, int, int, float]] = {}

    def note(self, led: LedPartition) -> None:
        """Update the lag; each roll, copy and settings change makes the tier look at the partition."""
        lag, before = led.uncopied_bytes, self._noted.get(led)
        if before is None or not lag or led.tier_end_offset != before[2]:
            self.forget(led)
        if not lag:
            return
        undecided, known = led.undecided_bytes, self._noted.get(led, (0, 0, 0, self._now()))
        self._noted[led] = lag, undecided, led.tier_end_offset, known[3]
        self.bytes += lag - known[0]
        self.undecided_bytes += undecided - known[1]

    @property
    def waiting_s(self) -> float:
        """For how long a partition has had a segment to copy without a copy that ended, the longest."""
        return next((self._now() - since for _, _, _, since in self._noted.values()), 0.0)

    def forget(self, led: LedPartition) -> None:
        lag, undecided, _, _ = self._noted.pop(led, (0, 0, 0, 0.0))
        self.bytes -= lag
        self.undecided_bytes -= undecided
