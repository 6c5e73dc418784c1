"""One runtime for all shards on internal topics that this broker leads.

When this broker becomes leader of a partition, the runtime replays its log into a shard; meanwhile requests get
COORDINATOR_LOAD_IN_PROGRESS. `write` decides, appends, replays and replies when the high watermark has passed; all
decisions of one turn of the loop share a batch. `read` answers only while every ISR follower has recently fetched in
this epoch, so that a deposed coordinator returns nothing stale. A decision that the log would reject is rejected first,
or taken back. A new epoch, or another disk failure, drops the shard and loads it again. One timer serves all shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from msgspec import Struct, field

from broker.coordination.hosted_shard import HostedShard, HostLimits
from broker.coordination.lateness import Lateness
from broker.coordination.loading import LoadLimits, load_shard
from broker.coordination.partition_access import CoordinatedPartition
from broker.coordination.shard import (
    CoordinatorRecord,
    Decide,
    DecideOrPark,
    Now,
    Query,
    Reply,
    Shard,
    ShardType,
)
from broker.coordination.snapshots import ShardSnapshots, SnapshotLimits, begin_shard
from broker.coordination.standby import StandbyLimits, Standbys
from broker.deadlines import DueHeap
from broker.partitions.transactional_appends import Marker, Permission
from common.backoff import Backoff
from common.errors import ErrorCode, ProtocolError, StorageFailure
from common.lifecycle import duty, end_task
from common.pacing import Pacer, Work
from common.ports import Clock, Disk

PartitionKey = tuple[str, int]
MakeShard = Callable[[int], Shard]
Act = Callable[[int, int, Any], None]
"""Begins something that a shard wants done; called with its partition index, its leader epoch, and what."""

RELOAD = Backoff(0.1, 5.0)
SHORT_COST = 100  # units of `common.pacing`; what takes less waits for no room
LOOK_S = 0.001  # the loop polls all sockets once in this time
SHARDS_AT_ONCE = 4  # whose timers run in one callback, if their work takes less than ...
TURN_S = 0.002

_log = logging.getLogger(__name__)


class RuntimeConfig(Struct, frozen=True):
    """`loads_at_once`: number of logs replayed at a time; `reload`: backoff of retries."""

    host: HostLimits = field(default_factory=HostLimits)
    load: LoadLimits = field(default_factory=LoadLimits)
    loads_at_once: int = 4
    reload: Backoff = RELOAD


class _Slot:
    """A partition that this broker leads in one epoch, with its shard or the task that loads it."""

    __slots__ = ("_failures", "_load", "hosted", "leader_epoch", "partition")

    def __init__(self, partition: CoordinatedPartition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.hosted: HostedShard[Any] | None = None
        self._load: asyncio.Task[None] | None = None
        self._failures = 0  # consecutive failed loads and broken shards, for the backoff

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the slot's epoch."""
        return self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch

    def load_by(self, load: Coroutine[Any, Any, None]) -> None:
        self._load = asyncio.get_running_loop().create_task(load, name=duty("load-shard"))

    def loaded(self, hosted: HostedShard[Any]) -> None:
        self._load, self.hosted = None, hosted

    def broke(self, hosted: HostedShard[Any]) -> bool:
        """Drop the broken shard. Returns whether it was the one that served here."""
        if self.hosted is not hosted:
            return False
        self.hosted = None
        return True

    def failed(self, backoff: Backoff) -> float:
        """Count a failure. Returns the pause before the next load."""
        self._failures += 1
        return backoff.pause_s(self._failures)

    def end(self) -> asyncio.Task[None] | None:
        """Stop serving. Returns the cancelled load, if it has not ended yet."""
        if self.hosted is not None:
            self.hosted.close()
        if self._load is not None:
            self._load.cancel()
        return self._load


class CoordinatorRuntime:
    """Created before the broker leads anything. `host` registers topics, then `elected` and `resigned` drive it."""

    def __init__(
        self, clock: Clock, config: RuntimeConfig, pacer: Pacer, holds_lease: Callable[[], bool] = lambda: True
    ) -> None:
        """`holds_lease()`: whether the controllers consider this broker alive."""
        self._clock = clock
        self._config = config
        self._pacer = pacer
        self._holds_lease = holds_lease
        self._makers: dict[str, MakeShard] = {}
        self._acts: dict[str, Act] = {}
        self._standbys: Standbys | None = None
        self._snapshots: ShardSnapshots | None = None
        self._writing: asyncio.Task[None] | None = None
        self._slots: dict[PartitionKey, _Slot] = {}
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._load_places = asyncio.Semaphore(config.loads_at_once)
        self._armed: DueHeap[HostedShard[Any]] = DueHeap()
        self._due: deque[tuple[float, HostedShard[Any]]] = deque()  # with their deadlines, which have passed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._lateness = Lateness()
        self._count = 0
        self._stopped = False

    def host(self, topic: str, make_shard: MakeShard, act: Act | None = None) -> None:
        """`make_shard(partition index)` creates the empty shards of `topic`. `act` begins what they want done, on the
        loop and in short steps, once the records that ask for it are committed; it is meant for `ActingShard`."""
        self._makers[topic] = make_shard
        if act is not None:
            self._acts[topic] = act

    def keep_snapshots(self, disk: Disk, limits: SnapshotLimits | None = None) -> None:
        """From now on write snapshots of shards that support it. Call it before `keep_standbys`."""
        self._snapshots = ShardSnapshots(disk, self._clock, self._pacer, limits or SnapshotLimits())
        self._writing = asyncio.get_running_loop().create_task(
            self._write_snapshots(self._snapshots), name=duty("shard-snapshots")
        )

    async def _write_snapshots(self, snapshots: ShardSnapshots) -> None:
        """Write the shards that serve here, one after another."""
        while True:
            await asyncio.sleep(snapshots.interval_s)
            for slot in list(self._slots.values()):
                hosted = slot.hosted
                if hosted is not None and snapshots.is_due(slot.partition, hosted.shard, hosted.end):
                    await snapshots.write(slot.partition, hosted.shard, hosted.progress())

    def keep_standbys(self, followed: Callable[[], list[CoordinatedPartition]], limits: StandbyLimits) -> None:
        """From now on keep standbys of these partitions, which other brokers lead."""

        def make(topic: str, index: int) -> Shard:
            return self._makers[topic](index)

        self._standbys = Standbys(
            followed=followed,
            make_shard=make,
            load=self._config.load,
            limits=limits,
            pacer=self._pacer,
            snapshots=self._snapshots,
        )
        self._standbys.start()

    @property
    def standby_bytes(self) -> int:
        return 0 if self._standbys is None else self._standbys.size

    # leadership --------------------------------------------------------------------------------------------

    def elected(self, partition: CoordinatedPartition) -> None:
        """This broker leads `partition` in `partition.leader_epoch`. A repeated epoch changes nothing."""
        key = (partition.topic, partition.index)
        if partition.topic not in self._makers or self._stopped:
            return
        slot = self._slots.get(key)
        if slot is not None and slot.leader_epoch == partition.leader_epoch:
            return
        self._drop(key)
        slot = self._slots[key] = _Slot(partition)
        slot.load_by(self._load(slot, 0.0))

    def resigned(self, topic: str, index: int) -> None:
        """This broker no longer leads that partition, or it was deleted."""
        self._drop((topic, index))

    def _drop(self, key: PartitionKey) -> None:
        slot = self._slots.pop(key, None)
        load = slot.end() if slot is not None else None
        if load is not None:
            self._keep_until_done(load)

    def _keep_until_done(self, task: asyncio.Task[None]) -> None:
        """Reference a cancelled task until it has ended, because the loop references tasks only weakly."""
        self._count += 1
        number = self._count
        self._ending[number] = task
        task.add_done_callback(lambda _: self._ending.pop(number, None))

    async def _load(self, slot: _Slot, pause_s: float) -> None:
        """Load until it succeeds or the slot is dropped, which cancels this task."""
        partition = slot.partition

        def make() -> Shard:
            return self._makers[partition.topic](partition.index)

        while True:
            await asyncio.sleep(pause_s)
            ready = self._standbys.take(partition) if self._standbys is not None else None
            try:
                async with self._load_places:
                    shard, begin = ready or await begin_shard(partition, make, self._snapshots)
                    end = await load_shard(partition, shard, self._config.load, self._pacer, begin)
            except (ProtocolError, StorageFailure, OSError, ValueError) as error:
                fields = {"topic": partition.topic, "partition": partition.index, "error": str(error)}
                _log.warning("shard not loaded", extra=fields)
                pause_s = slot.failed(self._config.reload)
                continue
            break
        if not slot.is_current:
            return  # the next election loads it again
        hosted: HostedShard[Any] = HostedShard(
            shard=shard,
            partition=partition,
            clock=self._clock,
            limits=self._config.host,
            loaded_end=end,
            deadline_moved=lambda: self._arm(hosted),
            broken=lambda: self._shard_broke(slot, hosted),
            holds_lease=self._holds_lease,
            begin_act=lambda what: self._act(slot, what),
        )
        slot.loaded(hosted)
        fields = {"topic": partition.topic, "partition": partition.index, "epoch": slot.leader_epoch, "end": end}
        _log.info("shard loaded", extra=fields)
        hosted.begin()
        self._arm(hosted)

    def _act(self, slot: _Slot, what: object) -> None:
        partition = slot.partition
        self._acts[partition.topic](partition.index, slot.leader_epoch, what)

    def _shard_broke(self, slot: _Slot, hosted: HostedShard[Any]) -> None:
        """The disk failed, or leadership ended: load again, unless the slot is dropped or already loading."""
        current = self._slots.get((slot.partition.topic, slot.partition.index))
        if self._stopped or current is not slot or not slot.broke(hosted):
            return
        if slot.is_current:
            slot.load_by(self._load(slot, slot.failed(self._config.reload)))
        else:
            del self._slots[slot.partition.topic, slot.partition.index]

    # requests ----------------------------------------------------------------------------------------------

    def active(self, topic: str) -> list[int]:
        """The partitions of `topic` whose shards serve, in order."""
        return sorted(index for (name, index), slot in self._slots.items() if name == topic and slot.hosted)

    def is_loading(self, topic: str) -> bool:
        """Whether a shard of `topic` is still being replayed here."""
        return any(name == topic and slot.hosted is None for (name, _), slot in self._slots.items())

    def leader_epoch(self, topic: str, index: int) -> int | None:
        """The epoch of the shard that serves here, or None."""
        slot = self._slots.get((topic, index))
        return None if slot is None or slot.hosted is None else slot.leader_epoch

    def leads(self, topic: str, index: int) -> bool:
        """Whether the shard is here, loaded or not."""
        return (topic, index) in self._slots

    def notify(self, topic: str, act: Callable[[Any, Now], list[CoordinatorRecord]]) -> None:
        """Call `act` on every shard of `topic` that serves here."""
        for index in self.active(topic):
            hosted = self._hosted(topic, index)
            hosted.notify(act)
            self._arm(hosted)

    async def write(
        self,
        topic: str,
        index: int,
        decide: Decide[ShardType, Reply],
        *,
        soft: bool = False,
        permission: Permission | None = None,
    ) -> Reply:
        """Run `decide` on the shard. Returns its reply when it is committed. `soft`: the decision never yields records.
        `permission`: of the producer in whose transaction they are; a void one is refused before the decision.

        Raises ProtocolError: errors of `decide` and of the permission; NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE (also if the commit took too long; then its outcome is unknown).
        """
        hosted = self._hosted(topic, index)
        future: asyncio.Future[Reply] = hosted.submit(decide, soft=soft, permission=permission)
        self._arm(hosted)
        return await future

    def marker_cost(self, topic: str, index: int, marker: Marker) -> int:
        """What `append_marker` takes for what it ends, in units of `common.pacing`. Raises NOT_COORDINATOR and
        COORDINATOR_LOAD_IN_PROGRESS."""
        return self._hosted(topic, index).marker_cost(marker)

    def append_marker(self, topic: str, index: int, marker: Marker) -> asyncio.Future[None]:
        """End a producer's transaction in a partition: append the marker and replay its outcome in one go. The future
        ends when the marker is committed, or what it repeats; it may fail as `write` does.

        Raises ProtocolError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and what
        `CoordinatedPartition.append_marker` raises; then nothing has changed.
        """
        hosted = self._hosted(topic, index)
        future = hosted.append_marker(marker)
        self._arm(hosted)
        return future

    async def write_or_park(self, topic: str, index: int, decide: DecideOrPark[ShardType, Reply]) -> Reply:
        """As `write`, for a decision whose reply may come later through its ticket."""
        hosted = self._hosted(topic, index)
        future: asyncio.Future[Reply] = hosted.submit(decide, soft=False)
        self._arm(hosted)
        return await future

    def write_unattended(self, topic: str, index: int, decide: Decide[ShardType, Reply]) -> None:
        """As `write`, without waiting for a reply: the caller retries a failure later."""
        try:
            hosted = self._hosted(topic, index)
            future = hosted.submit(decide, soft=False)
        except ProtocolError:
            return
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._arm(hosted)

    async def read(self, topic: str, index: int, query: Query[ShardType, Reply]) -> Reply:
        """Run `query` on the shard. Returns when everything that it saw is committed. Raises as `write`."""
        hosted = self._hosted(topic, index)
        future = hosted.query(query)
        self._arm(hosted)
        return await future

    async def read_slowly(
        self,
        topic: str,
        index: int,
        work: Callable[[ShardType, Now], Work[Reply]],
        lane: Hashable,
        *,
        own: bool = False,
    ) -> Reply:
        """As `read`, for a long query: it runs in slices, between which the shard may change. `lane` and `own`: see
        `Pacer.start`. COORDINATOR_NOT_AVAILABLE, too, if it may have seen records that were taken back."""
        hosted = self._hosted(topic, index)
        undone = hosted.progress().undone
        before = undone()
        found = await self._pacer.run(work(hosted.shard, hosted.now()), lane, own=own)
        if hosted.closed:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        if undone() != before:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log refuses appends")
        future: asyncio.Future[Reply] = hosted.query(lambda _, __: found)
        self._arm(hosted)
        return await future

    def cost(self, topic: str, index: int, cost_of: Callable[[ShardType], int]) -> int:
        """What `cost_of` says of the shard, in units of `common.pacing`; 0 if it is little. Raises NOT_COORDINATOR and
        COORDINATOR_LOAD_IN_PROGRESS."""
        cost = cost_of(self._hosted(topic, index).shard)
        return 0 if cost < SHORT_COST else cost

    async def room(self, cost: int, lane: Hashable) -> None:
        """Wait for a turn of the loop that has room for a decision of `cost`."""
        if not self._pacer.admits(cost):
            await self._pacer.rest(lane, own=False)
            self._pacer.admits(cost)  # so that nothing else is admitted in this turn

    async def rest(self, lane: Hashable, *, own: bool = False) -> None:
        """Wait for the lane's next turn, between the parts of a long write."""
        await self._pacer.rest(lane, own=own)

    def _hosted(self, topic: str, index: int) -> HostedShard[Any]:
        slot = self._slots.get((topic, index))
        if slot is None:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        if slot.hosted is None:
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return slot.hosted

    # time --------------------------------------------------------------------------------------------------

    def _arm(self, hosted: HostedShard[Any]) -> None:
        deadline = hosted.arm()
        if deadline is None:
            return
        self._armed.add(deadline, hosted)
        if deadline < self._timer_at:
            self._set_timer(deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, deadline - self._clock.monotonic()), self._fire)

    def _fire(self) -> None:
        """Poll the sockets first, because requests that clients sent in time may wait there."""
        now = self._clock.monotonic()
        if self._lateness.fired(self._timer_at, now):
            _log.warning("stalled: members' sessions are extended", extra={"late_s": round(self._lateness.late_s, 3)})
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._expire)

    def _expire(self) -> None:
        """Shards do what is due, a few of them in one callback: the work of each may take milliseconds, and many are
        due at the same time. The next ones follow after a rest that is as long as this work."""
        self._timer, self._timer_at = None, float("inf")
        began = now = self._clock.monotonic()
        while (entry := self._armed.pop_due(now)) is not None:
            deadline, _, hosted = entry
            self._due.append((deadline, hosted))
        served = 0
        while self._due and served < SHARDS_AT_ONCE and now - began < TURN_S:
            deadline, hosted = self._due.popleft()
            if hosted.take_due(deadline) and not hosted.closed:
                self._expire_one(hosted)
                served += 1
                now = self._clock.monotonic()
        first = self._armed.first()
        if self._due:
            self._set_timer(now + (now - began))
        elif first is not None and first[0] < self._timer_at:
            self._set_timer(first[0])

    def _expire_one(self, hosted: HostedShard[Any]) -> None:
        """An unexpected exception costs this shard alone, which is loaded again: the timers of all others go on."""
        try:
            hosted.expire(self._lateness.spared_until)
        except Exception as error:
            fields = {"topic": hosted.partition.topic, "partition": hosted.partition.index, "error": repr(error)}
            _log.exception("a shard's timer failed: it is loaded again", extra=fields)
            hosted.give_up()
            context = {"message": "a shard's timer failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)  # a broken invariant stops the node
        self._arm(hosted)

    async def stop(self) -> None:
        """Drop all shards; waiting requests get NOT_COORDINATOR. Nothing needs to be flushed, because the log has
        everything. Snapshots are written first, so that the next start replays little."""
        await end_task(self._writing)
        if self._snapshots is not None:
            hosted = [slot.hosted for slot in self._slots.values() if slot.hosted is not None]
            await self._snapshots.write_last([(one.partition, one.shard, one.progress()) for one in hosted])
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._slots):
            self._drop(key)
        self._armed.clear()
        self._due.clear()
        if self._standbys is not None:
            await self._standbys.stop()
        for task in list(self._ending.values()):
            with contextlib.suppress(asyncio.CancelledError):
                await task
