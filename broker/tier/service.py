"""A broker's tier service: claims, copies, retention, and replicas that start from the tier.

Once per interval one task looks at the led tiered partitions on its agenda and starts what is due, with a limit for
each kind of work. There is no other task per partition. Produce, replication and local reads do not depend on the store
or the shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from broker.partitions.partition import Partition
from broker.partitions.record_deletion import DELETE_RECORDS
from broker.partitions.replica import Role
from broker.tier.adoption import adopt
from broker.tier.agenda import Agenda
from broker.tier.config import TierConfig, WorkKind
from broker.tier.copying import Copier, next_segment
from broker.tier.deletion import DeleteDelays, Deleter, erased_objects
from broker.tier.disabling import Disabling
from broker.tier.erasing import LocalErasure
from broker.tier.led import CopyLag, Fenced, LedPartition, NotNow
from broker.tier.reconciling import begin_at_end, lost_committed, read_end, reconcile
from broker.tier.services import TierServices
from broker.tier.starts import TierStarts, report_start
from broker.tier.undecided import check_producers_read, end_undecided
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_tasks
from common.pacing import Work
from kraft.image.partitions import PartitionImage
from kraft.topic_names import INTERNAL_TOPICS
from storage.log import tier_start
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Claim, RefusalCode, Refused

logger = logging.getLogger(__name__)

PARTITIONS_PER_TURN = 64
ROLL_COST = 2
CLAIM_POLL_S = 0.05
ERASE_POLL_S = 1.0
_IDLE = (Fenced, NotNow, ProtocolError, OutcomeUnknown)


class TierService:
    """One per broker with a tier; call `start` and `stop` once; calls run on the loop. Implements `ports.Tier`."""

    def __init__(self, services: TierServices, config: TierConfig) -> None:
        self._services = services
        self._hosted = services.hosted
        self._calls = services.calls
        self._clock = services.ports.clock
        self._chance = services.ports.random
        self._config = config
        self.node_id = services.hosted.node_id
        self._loop = asyncio.get_running_loop()
        self.copier = Copier(
            services.ports, self.node_id, config, services.store, services.root,
            calls=services.calls, guard=services.guard,
        )  # fmt: skip
        self.deleter = Deleter(
            clock=self._clock,
            delays=DeleteDelays(config.delete_delay_ms, config.erase_grace_ms),
            store=services.store,
            root=services.root,
            calls=services.calls,
            guard=services.guard,
            manifests=services.manifests,
            audit=services.audit,
        )
        self._disabling = Disabling(services, self.deleter)
        self._led: dict[Partition, LedPartition] = {}
        self._starting: dict[Partition, asyncio.Task[None]] = {}
        self.erasure = LocalErasure(self._clock)
        self._start_places = asyncio.Semaphore(config.starts_max)
        self.starts = TierStarts(config.backoff)
        self._agenda = Agenda(config.places)
        self.copy_lag = CopyLag(self._clock.monotonic)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._stopped = False
        self.started_from_tier = 0

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name=duty("tier"))

    async def stop(self) -> None:
        """Change nothing: the next leader's claim decides about copies under way."""
        self._stopped = True
        await end_tasks([*self._tasks, *self._starting.values(), *([self._task] if self._task is not None else [])])
        await self.erasure.stop()
        self._task = None

    # for other parts of the broker ------------------------------------------------------------------------------

    def view(self, partition: Partition) -> PartitionTier | None:
        """The tier's state of a partition that this broker leads; None until its claim is answered.

        Until then nothing below the local log may be served: the response is a retriable error.
        """
        led = self._led.get(partition)
        return led.view if led is not None and led.reconciled and led.is_current else None

    @property
    def led(self) -> list[LedPartition]:
        return list(self._led.values())

    async def delete_records(self, partition: Partition, offset: int, timeout_s: float, actor: str = "") -> None:
        """See `ports.Tier`. After REQUEST_TIMED_OUT the log start may or may not have moved."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    led = self._led.get(partition)
                    if led is None:
                        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    try:
                        if led.reconciled:
                            await self.deleter.move_log_start(led, offset, DELETE_RECORDS, actor)
                            led.retain_now()
                            self._consider_soon(led)
                            return
                    except NotNow as error:
                        logger.info("records are not deleted yet", extra={"partition": repr(led), "cause": str(error)})
                    await asyncio.sleep(CLAIM_POLL_S)
        except Fenced:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from None
        except TimeoutError:
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "the tier's state does not answer") from None

    # roles -------------------------------------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """See `ports.Tier`."""
        led = self._led.get(partition)
        wanted = partition.is_leader and (_is_tiered(partition) or self._disabling.concerns(partition))
        if led is not None and (not wanted or not led.is_current):
            if led.held_back and led.is_current:
                return
            self._forget(led)
            led = None
        if wanted:
            self.starts.forget(partition)
        if led is not None:
            self._consider_soon(led)  # its topic's settings may have changed
        elif wanted:
            self._lead(partition, partition.leader_epoch, held_back=False)

    def removed(self, partition: Partition) -> None:
        """See `ports.Tier`."""
        led = self._led.get(partition)
        if led is not None:
            self._forget(led)
        self._disabling.removed(partition)
        self.erasure.removed(partition)
        self.starts.forget(partition)
        starting = self._starting.get(partition)
        if starting is not None:
            starting.cancel()

    def may_lead(self, partition: Partition, image: PartitionImage) -> bool:
        """Whether this replica was elected from the ISR, or is the first of its partition. See `ports.Tier`."""
        led = self._led.get(partition)
        if led is not None and led.held_back and led.leader_epoch == image.leader_epoch:
            return False
        if not _is_tiered(partition) and not self._must_adopt(partition):
            return True
        before = partition.image
        is_new = image.partition_epoch == 0 and not self._adopts(partition)
        if is_new or (before is not None and self._was_in_sync(before, image) and not self._must_adopt(partition)):
            return True
        if led is not None:
            self._forget(led)
        self._lead(partition, image.leader_epoch, held_back=True)
        return False

    def _was_in_sync(self, before: PartitionImage, image: PartitionImage) -> bool:
        """Whether this broker was elected from the ISR. If its last image is older than the election, the size of the
        ISR shows it: after any other election the ISR is the leader alone."""
        is_next = image.partition_epoch == before.partition_epoch + 1
        return self.node_id in before.isr and (is_next or len(image.isr) > 1)

    def _adopts(self, partition: Partition) -> bool:
        topic = self._hosted.image.topics.get_by_id(partition.topic_id)
        return topic is not None and topic.adopts_tier

    def _must_adopt(self, partition: Partition) -> bool:
        """A restored partition has no log before the tier's state is known."""
        return self._adopts(partition) and partition.log.log_end_offset == 0

    def _lead(self, partition: Partition, leader_epoch: int, *, held_back: bool) -> None:
        led = self._led[partition] = LedPartition(
            partition,
            leader_epoch,
            self._services.broker_epoch(),
            held_back=held_back,
            on_unclaimed=self._consider_soon,
        )
        self._consider_soon(led)

    def _consider_soon(self, led: LedPartition) -> None:
        self._agenda.soon(led)
        self._wake.set()

    def _forget(self, led: LedPartition) -> None:
        self._agenda.forget(led)
        self.copy_lag.forget(led)
        if self._led.get(led.partition) is led:
            del self._led[led.partition]
            self._services.manifests.resign(led.partition.topic_id, led.partition.index)
        led.cancel_work()

    # the round ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._consider_due()
            except Exception:  # must not end the task: nothing would be copied any more, and disks would fill up
                logger.exception("a round of the tier failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.interval_ms / 1000):
                    await self._wake.wait()

    async def _consider_due(self) -> None:
        pacer = self._services.pacer
        await pacer.run(self._note_rolls(), "tier", own=True)
        for number, led in enumerate(await pacer.run(self._agenda.take(self._loop.time()), "tier", own=True)):
            if number % PARTITIONS_PER_TURN == PARTITIONS_PER_TURN - 1:
                await pacer.rest("tier")
            if self._led.get(led.partition) is led:
                self._consider(led)

    def _note_rolls(self) -> Work[None]:
        """Put logs on the agenda that have rolled a segment or have new settings since the last round."""
        rolled = self._hosted.rolled_logs
        while rolled:
            partition = self._hosted.get(*rolled.popitem()[0])
            led = self._led.get(partition) if partition is not None else None
            if led is not None:
                self._agenda.soon(led)
            yield ROLL_COST

    def _consider(self, led: LedPartition) -> None:
        """Start what is due. The partition returns to the agenda when that ends, when requested, or at its next
        time."""
        now = self._loop.time()
        self.copy_lag.note(led)
        if not led.is_current:
            self._forget(led)
        elif led.retry_at > now:
            self._agenda.at(led, led.retry_at, now)
        elif led.view is None or not led.reconciled:
            if not led.is_maintained and self._agenda.may_begin(led, WorkKind.CLAIM):
                self._begin(led, WorkKind.CLAIM, self._claim(led))
        elif led.is_disabled:
            self._consider_disabled(led, now)
        else:
            try:
                led.partition.log.roll_for_tier(self._clock.wall_ms())
                self._consider_copy(led)
            except NotNow as error:
                self._put_off(led, error)
                self._agenda.at(led, led.retry_at, now)
                return
            except ProtocolError:  # a disk failure, which the log directory reports
                self._agenda.soon(led)
                return
            if not led.is_maintained and led.is_due(self._config, now) and self._agenda.may_begin(led, WorkKind.DELETE):
                self._begin(led, WorkKind.DELETE, self._maintain(led))
            self._agenda.at(led, led.due_at(self._config, now, self._clock.wall_ms()), now)

    def _consider_disabled(self, led: LedPartition, now: float) -> None:
        if self._disabling.has_ended(led.partition):
            self._forget(led)
            return
        if not led.is_maintained and self._disabling.is_due(led, now) and self._agenda.may_begin(led, WorkKind.DELETE):
            self._begin(led, WorkKind.DELETE, self._disabling.go_on(led))
        self._agenda.at(led, max(led.delete_at, now), now)

    def _consider_copy(self, led: LedPartition) -> None:
        if led.is_copying or not led.may_copy:
            return
        if not self._agenda.may_begin(led, WorkKind.COPY):
            return
        try:
            closed = next_segment(led, led.known)
        except (NotNow, ProtocolError):
            self.copier.count_failure(led)
            raise
        if closed is None:
            self._agenda.soon(led)  # it waits to be committed, and there is no notification of that
        else:
            self._begin(led, WorkKind.COPY, self._copy(led))

    def _begin(self, led: LedPartition, kind: WorkKind, work: Coroutine[Any, Any, None]) -> None:
        """Per partition, at most one claim, retention or deletion runs at a time, and at most one copy."""
        task = self._loop.create_task(work, name=f"tier-{kind.value}")  # `_ended` handles failures
        self._tasks[task] = None
        self._agenda.began(kind)
        led.began(task, kind)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.pop(task, None)
            self._agenda.ended(kind)
            led.ended(task)
            self._ended(led, task)

        task.add_done_callback(ended)

    def _ended(self, led: LedPartition, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            logger.info("another leader has the tier", extra={"partition": repr(led), "cause": str(error)})
            led.lost()
            self._services.manifests.resign(led.partition.topic_id, led.partition.index)
            self._fail(led, f"another leader has the tier: {error}")  # the image will follow; until then retry rarely
        elif isinstance(error, _IDLE):
            self._put_off(led, error)
        elif error is not None:
            logger.error("the tier has a fault", exc_info=error, extra={"partition": repr(led)})
            self._fail(led, repr(error))
        elif not task.cancelled():
            led.succeeded()
        if not self._stopped:
            self._consider_soon(led)

    def _put_off(self, led: LedPartition, error: BaseException) -> None:
        if led.failures & (led.failures + 1) == 0:  # at growing intervals
            logger.warning(
                "the tier waits", extra={"partition": repr(led), "failures": led.failures, "cause": str(error)}
            )
        self._fail(led, str(error))

    def _fail(self, led: LedPartition, cause: str) -> None:
        led.failed(self._config, self._loop.time(), self._chance, cause)

    async def _copy(self, led: LedPartition) -> None:
        if await self.copier.copy_next(led):
            led.announce_end()
            if led.partition.holds_erased:
                self.drop_erased(led.partition)
            self._services.manifests.changed(led.known.topic_id, led.known.partition)

    async def _maintain(self, led: LedPartition) -> None:
        was_due = led.begin_retention(self._loop.time())
        try:
            await self.deleter.retain(led)
            await self.deleter.delete(led)
        finally:
            if was_due:
                await self._after_erasure(led)

    async def _after_erasure(self, led: LedPartition) -> None:
        """Delete objects with erased records as soon as allowed, and drop cached reads of them."""
        if led.view is not None and erased_objects(led.view):
            led.delete_by(self._loop.time() + ERASE_POLL_S)
        else:
            await self.erasure.forget_read()

    # swaps -------------------------------------------------------------------------------------------------

    async def swapped(self, led: LedPartition) -> None:
        """The shard has swapped in a job's segments."""
        tier = led.known
        self._services.manifests.changed(tier.topic_id, tier.partition)
        if tier.record.erased_end_offset:
            await self.erasure.forget_read()
            self._consider_erasure(led)

    def consider_soon(self) -> None:
        """Look at the agenda soon: there is something to copy."""
        self._wake.set()

    def _consider_erasure(self, led: LedPartition) -> None:
        tier, partition = led.known, led.partition
        if not tier.record.erased_end_offset:
            return
        partition.erased_below(tier.record.erased_end_offset)
        if erased_objects(tier):
            led.delete_by(self._loop.time() + self._config.erase_grace_ms / 1000)
            self._consider_soon(led)
        if partition.holds_erased:
            self.drop_erased(partition)

    def drop_erased(self, partition: Partition) -> None:
        """See `ports.Tier`."""
        self.erasure.begin(partition)

    # claims ------------------------------------------------------------------------------------------------

    async def _claim(self, led: LedPartition) -> None:
        partition = led.partition
        claim = Claim(led.leader_epoch, self.node_id, led.broker_epoch, partition.topic)
        reply = await self._calls.claim(partition.topic_id, partition.index, claim)
        if isinstance(reply, Refused):
            if reply.error in (RefusalCode.FENCED, RefusalCode.DROPPED):
                raise Fenced(reply.text)
            raise NotNow(f"the claim is refused: {reply.error}: {reply.text}")
        if not led.is_current:
            raise Fenced("this broker no longer leads")
        led.claimed(reply)
        if led.held_back and self._must_adopt(partition):
            incarnation = self._hosted.image.incarnation
            await adopt(led, self._services.store, self._services.root, self._calls, incarnation)
        await tier_start.settled(partition.log)  # it may have started there as a follower
        begins = (led.held_back or _is_tiered(partition)) and lost_committed(led)
        if begins:
            await self._begin_again(led)
        check_producers_read(led, lost=begins)
        if led.held_back:
            led.let_lead()
            self._hosted.resume_leadership(partition)
            if not led.is_current:
                raise Fenced("this broker no longer waits to lead")
        await end_undecided(led, self._services, lost=begins)
        await reconcile(led, self._calls)
        self._services.manifests.lead(led.known)
        self._consider_erasure(led)

    async def _begin_again(self, led: LedPartition) -> None:
        """This leader's log ends before the tier's end: start over there."""
        partition = led.partition
        self._services.audit.note(
            "log_behind_tier" if partition.log.log_end_offset else "log_begins_from_tier",
            topic=partition.topic,
            partition=partition.index,
            log_end_offset=partition.log.log_end_offset,
            tier_end_offset=led.known.tier_end_offset,
            leader_epoch=led.leader_epoch,
        )
        if not led.held_back:
            led.hold_back()
            self._hosted.step_back(partition)
        end = await read_end(self._services.store, self._services.root, led.known)
        following = self._hosted.following
        await begin_at_end(partition, end, lambda: led.is_current and partition.role is Role.OFFLINE, following)

    # followers ---------------------------------------------------------------------------------------------

    def start_from_tier(self, partition: Partition) -> None:
        """See `ports.Tier`."""
        if partition in self._starting or self._stopped or not self.starts.may_begin(partition, self._loop.time()):
            return
        task = self._loop.create_task(self._start_follower(partition), name="tier-start")
        self._starting[partition] = task

        def ended(task: asyncio.Task[None]) -> None:
            self._starting.pop(partition, None)
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            times = self.starts.failed(partition, self._loop.time())
            if isinstance(error, _IDLE):
                report_start("a replica cannot start from the tier yet", partition, times, cause=str(error))
            else:
                logger.error(
                    "a replica cannot start from the tier", exc_info=error, extra={"partition": repr(partition)}
                )

        task.add_done_callback(ended)

    async def _start_follower(self, partition: Partition) -> None:
        """Start the log at the tier's end; the next fetch continues from there."""
        async with self._start_places:
            log_end, generation = partition.log.log_end_offset, partition.tier_generation
            known = (partition.leader_epoch, log_end, generation)

            def still() -> bool:
                now = (partition.leader_epoch, partition.log.log_end_offset, partition.tier_generation)
                return now == known and partition.role is Role.FOLLOWER

            tier = await self._calls.describe(partition.topic_id, partition.index)
            if tier.generation != generation:
                raise NotNow("tiering was disabled, and the tier is not empty yet")
            if tier.tier_end_offset <= log_end:
                raise NotNow(f"the tier ends at {tier.tier_end_offset}, this log at {log_end}")
            end = await read_end(self._services.store, self._services.root, tier)
            await begin_at_end(partition, end, still, self._hosted.following)
            again = self.starts.began(partition, end.offset, self._loop.time())
            if again:
                report_start(
                    "the leader's log contradicts the tier: the replica starts at the tier's end again",
                    partition,
                    again,
                    leader=partition.leader_id,
                    offset=end.offset,
                )
            self.started_from_tier += 1
            extra = {"partition": repr(partition), "offset": end.offset, "log_start_offset": end.log_start_offset}
            logger.info("a replica starts at the tier's end", extra=extra)


def _is_tiered(partition: Partition) -> bool:
    return partition.log.config.remote_storage_enable and partition.topic not in INTERNAL_TOPICS
