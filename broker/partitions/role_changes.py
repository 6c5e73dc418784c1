"""Replicas that have yet to take their role of the newest metadata, and the work that changes the roles.

A few changes are made at once. Thousands, after a broker's death or the creation of a large topic, are made in slices
of the event loop, so that heartbeats and requests go on. Replicas that become leaders come before those that become
followers, even if their change is newer, because clients and other brokers' followers wait for leaders. Replicas of
newly created partitions come last, in the pacer's turns for clients, because no client uses them yet. A thread creates
the directories of many new replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

from common.errors import ProtocolError, StorageFailure
from common.lifecycle import duty
from common.pacing import Pacer, Work
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from storage.audit.audit_trail import AuditPending, AuditTrail

logger = logging.getLogger(__name__)

KEYS_PER_STEP = 64
AT_ONCE_MAX = 8  # number of new replicas whose directories are created on the loop
SORT_COST = 1  # of classifying a changed partition, in the pacer's units
CHANGE_COST = 15  # of changing one replica's role

Key = tuple[bytes, int]


class RoleTaker(Protocol):
    """Changes the roles of replicas; implemented by `broker.partitions.hosted`."""

    image: MetadataImage

    def take_role(self, key: Key) -> int:
        """Give one replica the role of the newest image. Returns the cost beyond `CHANGE_COST`.

        Raises AuditPending, before any effect; ProtocolError, StorageFailure or OSError if the disk fails.
        """
        ...

    def configure(self, delta: MetadataDelta) -> Work[None]:
        """Apply changed settings. Raises as `take_role`, except AuditPending."""
        ...

    def go_offline(self) -> None:
        """The disk has failed."""
        ...


class Directories(Protocol):
    """Creates the directories of new logs off the loop; implemented by `storage.directory.prepared_logs`."""

    async def make(self, wanted: Mapping[tuple[str, int], bytes]) -> None:
        """Create directories for logs with these topic ids, by topic and partition. Those that the disk rejects are
        left out."""
        ...

    def discard(self) -> None:
        """Remove the directories for which no log was created."""
        ...


class RoleChanges:
    """One per broker. `applied_offset` is the metadata offset up to which all roles are taken."""

    def __init__(self, node_id: int, pacer: Pacer, taker: RoleTaker, directories: Directories) -> None:
        self.applied_offset = EMPTY_IMAGE.offset
        self._on_applied: Callable[[], None] | None = None
        self.stopped = False
        self._node_id = node_id
        self._pacer = pacer
        self._taker = taker
        self._directories = directories
        self._deltas: list[MetadataDelta] = []
        # Work in order of precedence.
        self._leading: dict[Key, None] = {}  # to be deleted, or to become leader
        self._changing: dict[Key, None] = {}  # other changes of existing replicas
        self._made_to_lead: dict[Key, None] = {}  # to lead partitions that are new
        self._made: dict[Key, None] = {}
        self._preparing: dict[Key, None] = {}  # a thread creates their directories; they take no role meanwhile
        self._unaudited: dict[Key, None] = {}  # they wait for the audit
        self._is_working = False
        self._is_making = False
        self._later: asyncio.Future[None] | None = None  # the work, while it takes more than one slice
        self._later_made: asyncio.Future[None] | None = None
        self._applied = asyncio.Event()

    def subscribe(self, on_applied: Callable[[], None]) -> None:
        """Call `on_applied` whenever `applied_offset` has moved in a later turn of the loop."""
        self._on_applied = on_applied

    def add(self, delta: MetadataDelta) -> None:
        """Apply the changes of `delta`; the taker's image already has them."""
        self._deltas.append(delta)
        self._go_on()

    def add_keys(self, keys: Iterable[Key]) -> None:
        self._changing.update(dict.fromkeys(keys))
        self._go_on()

    async def wait_applied(self) -> None:
        """Wait until all roles match the image."""
        while self._is_busy and not self.stopped:
            self._applied.clear()
            await self._applied.wait()

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Wait until the roles match the metadata up to `offset`, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.applied_offset < offset and self._is_busy and not self.stopped:
                    self._applied.clear()
                    await self._applied.wait()

    def clear(self) -> None:
        """Drop all waiting changes."""
        self._deltas.clear()
        self._leading.clear()
        self._changing.clear()
        self._made_to_lead.clear()
        self._made.clear()
        self._unaudited.clear()
        self._applied.set()

    def stop(self) -> None:
        self.stopped = True
        self.clear()
        for later in (self._later, self._later_made):
            if later is not None:
                later.cancel()

    @property
    def _is_busy(self) -> bool:
        waits = self._deltas or self._leading or self._changing or self._new_count or self._unaudited
        return bool(waits or self._is_working or self._is_making)

    @property
    def _new_count(self) -> int:
        return len(self._made_to_lead) + len(self._made)

    def _go_on(self) -> None:
        if self.stopped:
            return
        if not self._is_working and (self._deltas or self._leading or self._changing):
            self._is_working = True
            self._later = self._started(self._work(), own=True)
        if not self._is_making and not self._is_working and (count := self._new_count):
            self._is_making = True
            if count <= AT_ONCE_MAX:
                later = self._started(self._making(), own=False)
            else:
                later = asyncio.get_running_loop().create_task(self._make_many(), name=duty("roles"))
                later.add_done_callback(_ended)
            self._later_made = later or self._later_made  # more of them may have begun by now

    def _started(self, work: Work[None], *, own: bool) -> asyncio.Future[None] | None:
        """Start the work. Returns its future if it takes more than one slice."""
        outcome = self._pacer.start(work, "roles", own=own)
        if not isinstance(outcome, asyncio.Future):
            return None
        outcome.add_done_callback(_ended)
        return outcome

    def _work(self) -> Work[None]:
        try:
            while self._deltas or self._leading or self._changing:
                if self._deltas:
                    yield from self._sort(self._deltas.pop(0))
                else:
                    yield from self._take_some(self._leading or self._changing)
        except (ProtocolError, StorageFailure, OSError) as error:
            self._fail(error)
        finally:
            self._is_working = False
        self._finish()

    def _making(self) -> Work[None]:
        """Create a few new replicas. Removals run before, because a new topic may have a deleted one's name."""
        try:
            while not self._is_working and 0 < self._new_count <= AT_ONCE_MAX:
                yield from self._take_some(self._made_to_lead or self._made)
        except (ProtocolError, StorageFailure, OSError) as error:
            self._fail(error)
        finally:
            self._is_making = False
        self._finish()

    async def _make_many(self) -> None:
        try:
            while not self._is_working and (waiting := self._made_to_lead or self._made):
                self._preparing = dict(islice(waiting.items(), KEYS_PER_STEP))
                await self._directories.make(self._wanted(self._preparing))
                some, self._preparing = self._preparing, {}
                if not self._is_working:
                    await self._pacer.run(self._take_some(waiting, some), "roles")
                self._directories.discard()
        except (ProtocolError, StorageFailure, OSError) as error:
            self._fail(error)
        finally:
            self._is_making = False
        self._finish()

    def _wanted(self, keys: Iterable[Key]) -> dict[tuple[str, int], bytes]:
        """The topic id of each new replica, by topic and partition."""
        image, wanted = self._taker.image, {}
        for topic_id, index in keys:
            partition, topic = image.partition(topic_id, index), image.topics.by_id.get(topic_id)
            if partition is not None and topic is not None and self._node_id in partition.replicas:
                wanted[topic.name, index] = topic_id
        return wanted

    def _fail(self, error: Exception) -> None:
        logger.error("metadata cannot be applied to the log directory", extra={"cause": str(error)})
        self._taker.go_offline()

    def _finish(self) -> None:
        """Continue with what waits; if nothing does, all roles are taken."""
        self._go_on()
        if self._is_busy or self.stopped:
            return
        has_moved = self.applied_offset != self._taker.image.offset
        self.applied_offset = self._taker.image.offset
        self._applied.set()
        is_later = any(later is not None and not later.done() for later in (self._later, self._later_made))
        if has_moved and is_later and self._on_applied is not None:
            self._on_applied()

    def _sort(self, delta: MetadataDelta) -> Work[None]:
        """Queue the replicas whose role changes: deletions, then leaders, then followers."""
        node, image = self._node_id, self._taker.image
        for topic_id, topic in delta.topics_deleted.items():
            for index, old in topic.partitions.items():
                if node in old.replicas:
                    self._leading[topic_id, index] = None  # its name may be in use by a new topic already
            yield SORT_COST * len(topic.partitions)
        yield from self._taker.configure(delta)
        is_first = delta.base.offset == EMPTY_IMAGE.offset  # all partitions are new to this broker then
        for number, (key, before) in enumerate(delta.partitions_changed.items()):
            now = image.partition(*key)
            if now is not None and node in now.replicas:
                is_new = (before is None and not is_first) or key in self._made or key in self._made_to_lead
                leading, others = (self._made_to_lead, self._made) if is_new else (self._leading, self._changing)
                (leading if now.leader == node else others)[key] = None
            elif before is not None and node in before.replicas:
                self._changing[key] = None
            if number % KEYS_PER_STEP == 0:
                yield SORT_COST * KEYS_PER_STEP

    def _take_some(self, waiting: dict[Key, None], some: Iterable[Key] = ()) -> Work[None]:
        """Give the first replicas of `waiting`, or those of `some`, the role of the newest image."""
        trail: AuditTrail | None = None
        for key in list(some or islice(waiting, KEYS_PER_STEP)):
            if key not in waiting:  # the disk failed meanwhile, or this broker is stopping
                continue
            del waiting[key]
            if key in self._preparing:
                continue
            cost = 0
            try:
                cost = self._taker.take_role(key)
            except AuditPending as pending:
                self._unaudited[key] = None
                trail = pending.trail
            yield CHANGE_COST + cost
        if trail is not None:
            trail.when_durable(self._audited)

    def _audited(self) -> None:
        waiting, self._unaudited = self._unaudited, {}
        if waiting and not self.stopped:
            self.add_keys(waiting)


def _ended(work: asyncio.Future[None]) -> None:
    """Raise the work's error on the loop at once: a broker whose roles are stuck must not look alive."""
    if not work.cancelled():
        work.result()
