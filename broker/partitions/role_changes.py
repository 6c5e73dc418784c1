"""Which replicas have yet to take the role that the newest metadata gives them, and the work that gets them there.

A few changes are done at once. Thousands, as when a broker dies or a large topic is made, are done in slices of the
event loop, so that heartbeats and requests go on. Replicas that are to lead come before those that are to follow,
also of later changes: clients wait for leaders, and so do followers elsewhere. Replicas of partitions that were made
just now come last, and in the turns of clients' work: no client uses them yet.
The directories of many are made in a thread.
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
AT_ONCE_MAX = 8  # new replicas whose directories are made on the loop
SORT_COST = 1  # of a changed partition that is looked at, in the pacer's units
CHANGE_COST = 15  # of a replica that takes another role

Key = tuple[bytes, int]


class RoleTaker(Protocol):
    """Gives replicas their roles; implemented by `broker.partitions.hosted`."""

    image: MetadataImage

    def take_role(self, key: Key) -> int:
        """Have one replica take the role of the newest image; what that cost beyond `CHANGE_COST`.

        Raises AuditPending, and nothing has happened; ProtocolError, StorageFailure or OSError when the disk fails.
        """
        ...

    def configure(self, delta: MetadataDelta) -> Work[None]:
        """Take over changed settings. Raises as `take_role`, but for AuditPending."""
        ...

    def go_offline(self) -> None:
        """The disk has failed."""
        ...


class Directories(Protocol):
    """Makes the directories of new logs off the loop; implemented by `storage.directory.prepared_logs`."""

    async def make(self, wanted: Mapping[tuple[str, int], bytes]) -> None:
        """Of logs with these topic ids, by topic and partition. What the disk refuses is left out."""
        ...

    def discard(self) -> None:
        """Those of which no log was made."""
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
        self._leading: dict[Key, None] = {}  # in order of change, and before ...
        self._changing: dict[Key, None] = {}  # ... all others, and these before ...
        self._made_to_lead: dict[Key, None] = {}  # ... those of new partitions
        self._made: dict[Key, None] = {}
        self._preparing: dict[Key, None] = {}  # their directories are being made: none takes a role meanwhile
        self._unaudited: dict[Key, None] = {}  # they wait for the audit
        self._is_working = False
        self._is_making = False
        self._later: asyncio.Future[None] | None = None  # the work, while it takes more than a slice
        self._later_made: asyncio.Future[None] | None = None
        self._applied = asyncio.Event()

    def subscribe(self, on_applied: Callable[[], None]) -> None:
        """Call `on_applied` from now on when `applied_offset` has moved in a later turn of the loop."""
        self._on_applied = on_applied

    def add(self, delta: MetadataDelta) -> None:
        """Take over what `delta` changes; the taker's image has it already."""
        self._deltas.append(delta)
        self._go_on()

    def add_keys(self, keys: Iterable[Key]) -> None:
        self._changing.update(dict.fromkeys(keys))
        self._go_on()

    async def wait_applied(self) -> None:
        """Until all roles are those of the image."""
        while self._is_busy and not self.stopped:
            self._applied.clear()
            await self._applied.wait()

    async def wait_for(self, offset: int, timeout_s: float) -> None:
        """Until the roles are those of the metadata up to `offset`, or for `timeout_s` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.applied_offset < offset and self._is_busy and not self.stopped:
                    self._applied.clear()
                    await self._applied.wait()

    def clear(self) -> None:
        """Leave what waits as it is."""
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
            self._later_made = later or self._later_made  # which more of them may have begun by now

    def _started(self, work: Work[None], *, own: bool) -> asyncio.Future[None] | None:
        """The work, if it takes more than a slice."""
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
        """A few new replicas. What goes must have gone before a topic of its name is opened."""
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
        """Go on with what waits; all roles are taken when nothing does."""
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
        """Note whose role changes: first what is deleted, then leaders, then followers."""
        node, image = self._node_id, self._taker.image
        for topic_id, topic in delta.topics_deleted.items():
            for index, old in topic.partitions.items():
                if node in old.replicas:
                    self._leading[topic_id, index] = None  # its name may be another topic's by now
            yield SORT_COST * len(topic.partitions)
        yield from self._taker.configure(delta)
        is_first = delta.base.offset == EMPTY_IMAGE.offset  # all are new to this broker then
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
        """`some` or the first that wait, each to what the newest image says of that replica."""
        trail: AuditTrail | None = None
        for key in list(some or islice(waiting, KEYS_PER_STEP)):
            if key not in waiting:  # the disk failed meanwhile, or this broker stops
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
    """A bug in it goes to the loop's exception handler at once: a broker without roles must not look alive."""
    if not work.cancelled():
        work.result()
