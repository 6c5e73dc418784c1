"""Follows the committed metadata from outside the quorum, for brokers and proxies.

The observer fetches the committed records after its own end from any controller, applies them to its image, notifies
its subscribers, and keeps an fsynced copy (`kraft.observers.local_copy`) so that a restart only needs what it missed.
It never goes back: it ignores a response with a lower epoch or end than its own and tries another controller. If the
active controller itself permanently has less than this node, or different records at the same offset, then this node's
metadata belongs to another quorum, and the node must stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct

from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, ProtocolError, StorageFailure
from common.identifiers import ONE_UUID
from common.lifecycle import duty
from common.pacing import Pacer, Work
from common.ports import Address, Ports
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import DamagedSnapshot, decoding
from kraft.links import Link, Links
from kraft.metadata_log import frames_in
from kraft.observers.local_copy import LocalCopy, NoRoom
from kraft.records import METADATA_TOPIC, PIECE_RECORDS_MAX
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import FetchRequest, FetchResponse, FetchSnapshotRequest, schema_uuid

log = logging.getLogger(__name__)

FETCH_VERSION = 13
FETCH_SNAPSHOT_VERSION = 0
SNAPSHOT_BYTES_MAX = 512 << 20
SNAPSHOT_PART_BYTES = 1 << 20
LANE = "metadata"
BACKOFF = Backoff(0.05, 0.5)

Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class ObserverConfig(Struct, frozen=True):
    """Times in seconds. `directory` is relative to the node's disk. `cluster_id`: if the node already knows it (from
    its log directory), it must match the quorum's."""

    node_id: int
    directory: str
    cluster_id: str | None = None
    fetch_wait_s: float = 0.5
    fetch_bytes_max: int = 1 << 20
    attempt_timeout_s: float = 3.0
    connect_timeout_s: float = 1.0
    backoff: Backoff = BACKOFF
    avoid_s: float = 1.0
    ahead_patience_s: float = 5.0
    persist_pause_s: float = 0.05
    room_pause_s: float = 1.0
    unsaved_bytes_max: int = 64 << 20


class _Unusable(Exception):
    """This controller's response cannot be used; try another controller."""


class _Foreign(Exception):
    """The local metadata does not belong to this quorum."""


class MetadataObserver:
    """`image` is always a committed state, only ever replaced by a later one. Owns two tasks."""

    def __init__(
        self,
        ports: Ports,
        links: Links,
        controllers: Mapping[int, Address],
        config: ObserverConfig,
        pacer: Pacer,
        on_fatal: Callable[[str], None],
        on_disk_failed: Callable[[str], None] | None = None,
    ) -> None:
        """`on_fatal` is called once, with a message, if the local metadata cannot belong to this quorum;
        `on_disk_failed` (default: `on_fatal`) if it cannot be written any more."""
        self.image: MetadataImage = EMPTY_IMAGE
        self.trouble = ""  # why the last controller could not be used
        self._links = links
        self._controllers = dict(sorted(controllers.items()))
        self._config = config
        self._pacer = pacer
        self._on_fatal = on_fatal
        self._on_disk_failed = on_disk_failed or on_fatal
        self._random = ports.random
        self._copy = LocalCopy(ports.disk, config.directory)
        self._subscribers: list[Subscriber] = []
        self._moved = asyncio.Event()
        self._unsaved: list[bytes] = []
        self._unsaved_bytes = 0
        self._jumped = False  # a snapshot was loaded: the copy must be replaced, not continued
        self._save_wanted = asyncio.Event()
        self._saved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._controller = -1
        self._rotation = config.node_id
        self._avoided = -1
        self._avoided_at = 0.0
        self._stopping = False
        self._behind_since: float | None = None
        self._heard_at = asyncio.get_running_loop().time()

    @property
    def heard_s(self) -> float:
        """Seconds since a controller in contact with a quorum answered: the maximal age of the image."""
        return asyncio.get_running_loop().time() - self._heard_at

    async def start(self) -> None:
        """Load the local copy, then follow in the background. Raises StorageFailure if the copy cannot be read.

        Subscribers first get the loaded image, as one delta from the empty one.
        """
        image = await asyncio.to_thread(self._copy.load)
        if image.offset >= 0:
            self._publish(await self._pacer.run(differing(EMPTY_IMAGE, image), LANE, own=True))
        self._tasks = [
            asyncio.create_task(self._follow(), name=duty("metadata-observer")),
            asyncio.create_task(self._persist(), name=duty("metadata-copy")),
        ]

    async def stop(self) -> None:
        """Save unsaved batches and stop. Idempotent."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        follower, keeper = tasks
        follower.cancel()
        self._stopping = True
        self._save_wanted.set()  # the saving task ends by itself: a save in a thread cannot be cancelled
        await asyncio.gather(follower, keeper, return_exceptions=True)
        await asyncio.to_thread(self._copy.close)

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(delta, image)` on the loop after each step; a delta may cover many batches or a snapshot.

        A subscriber from before `start` gets everything. A callback must not raise.
        """
        self._subscribers.append(callback)

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        """Whether the image holds `offset` within `timeout_s`."""
        return await self.wait_until(lambda image: image.offset >= offset, timeout_s)

    async def wait_until(self, holds: Callable[[MetadataImage], bool], timeout_s: float) -> bool:
        """Whether `holds(image)` becomes true within `timeout_s`; checked at each step."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds(self.image):
                    moved = self._moved
                    await moved.wait()
        except TimeoutError:
            return False
        return True

    # -- following

    async def _follow(self) -> None:
        retries = Retries(self._config.backoff, self._random)
        while True:
            link: Link | None = None
            try:
                link = await self._links.connect(self._next_controller(), self._config.connect_timeout_s)
                while not self._should_switch():
                    await self._step(link)
                    retries.succeeded()
                continue
            except (_Unusable, ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame) as error:
                self._avoided, self._avoided_at = self._controller, asyncio.get_running_loop().time()
                self.trouble = f"controller {self._controller}: {error}"
                log.debug("a controller cannot be used", extra={"controller": self._controller, "reason": str(error)})
            except _Foreign as error:
                self._on_fatal(str(error))
                return
            except Exception as error:  # a bug: a node that does not follow must not look alive
                log.exception("following the metadata failed")
                self._on_fatal(f"following the metadata failed: {error}")
                return
            finally:
                if link is not None:
                    link.close()
            await asyncio.sleep(retries.failed())

    def _next_controller(self) -> Address:
        """The active controller unless it failed recently, else all in turn."""
        if self._wants_leader():
            self._controller = self.image.leader_id
        else:
            ids = list(self._controllers)
            self._controller = ids[self._rotation % len(ids)]
            self._rotation += 1
        return self._controllers[self._controller]

    def _should_switch(self) -> bool:
        """Prefer the active controller, because it knows commits first."""
        return self.image.leader_id != self._controller and self._wants_leader()

    def _wants_leader(self) -> bool:
        leader = self.image.leader_id
        if leader not in self._controllers:
            return False
        waited_s = asyncio.get_running_loop().time() - self._avoided_at
        return leader != self._avoided or waited_s > self._config.avoid_s

    async def _step(self, link: Link) -> None:
        config = self._config
        while self._unsaved_bytes > config.unsaved_bytes_max:
            self._saved.clear()
            await self._saved.wait()
        response = await link.call(self._fetch_request(), FETCH_VERSION, config.attempt_timeout_s)
        if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise _Foreign(f"this node's metadata is of cluster {self._cluster_id()}, the controllers' of another one")
        if response.error_code or not response.responses or not response.responses[0].partitions:
            raise _Unusable(f"error {response.error_code}")
        answer = response.responses[0].partitions[0]
        leader = answer.current_leader
        if leader is None or leader.leader_epoch < self.image.epoch or answer.high_watermark < self.image.next_offset:
            self._note_behind(answer)
            raise _Unusable("it has less metadata than this node")
        self._behind_since = None
        if answer.error_code:
            raise _Unusable(f"error {answer.error_code}")
        if answer.diverging_epoch is not None and answer.diverging_epoch.epoch >= 0:
            raise _Foreign("this node's metadata differs from the quorum's at the same offset")
        if answer.snapshot_id is not None and answer.snapshot_id.end_offset >= 0:
            await self._jump(link, answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
        elif answer.records:
            await self._advance(bytes(answer.records))
        self._heard_at = asyncio.get_running_loop().time()

    def _note_behind(self, answer: FetchResponse.FetchableTopicResponse.PartitionData) -> None:
        """A follower may lag, and so may a leader briefly. An active controller, which answers only in contact with a
        majority, has applied everything committed before it. If it stays behind this node, this node has metadata that
        the quorum never committed or has lost."""
        leader = answer.current_leader
        if leader is None or leader.leader_id != self._controller:
            return
        now = asyncio.get_running_loop().time()
        if self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since > self._config.ahead_patience_s:
            raise _Foreign(
                f"this node's metadata reaches offset {self.image.offset}, the quorum's only "
                f"{answer.high_watermark - 1}: it is of another or of an older quorum"
            )

    async def _advance(self, frames: bytes) -> None:
        """Apply complete batches, some hundred records or one larger batch at a time. Batches that are damaged or do
        not continue the image are fetched from another controller."""
        view, at = memoryview(frames), 0
        begin = self.image.next_offset
        try:
            while (piece := await self._pacer.run(_folding(self.image, view, at), LANE, own=True)) is not None:
                at = piece.end
                self._take(frames[piece.first : piece.end], piece.delta)
                await self._pacer.rest(LANE)
        except (ProtocolError, ValueError) as error:
            raise _Unusable("its records are damaged") from error
        if self.image.next_offset == begin:
            raise _Unusable("its response has no new record")

    def _take(self, frames: bytes, delta: MetadataDelta) -> None:
        self._unsaved.append(frames)
        self._unsaved_bytes += len(frames)
        self._publish(delta)

    async def _jump(self, link: Link, end_offset: int, epoch: int) -> None:
        data = bytearray()
        while True:
            request = self._snapshot_request(end_offset, epoch, len(data))
            response = await link.call(request, FETCH_SNAPSHOT_VERSION, self._config.attempt_timeout_s)
            part = response.topics[0].partitions[0] if response.topics and response.topics[0].partitions else None
            if response.error_code or part is None or part.error_code or not part.unaligned_records:
                raise _Unusable("its snapshot cannot be fetched")
            data += part.unaligned_records
            if part.size > SNAPSHOT_BYTES_MAX or len(data) > part.size:
                raise _Unusable("its snapshot has a wrong size")
            if len(data) == part.size:
                break
        try:
            image = await self._pacer.run(decoding(data), LANE, own=True)
        except DamagedSnapshot as error:
            raise _Unusable(str(error)) from error
        if image.offset < self.image.offset or image.epoch < self.image.epoch:
            raise _Unusable("its snapshot is older than the image")
        delta = await self._pacer.run(differing(self.image, image), LANE, own=True)
        self._unsaved, self._unsaved_bytes, self._jumped = [], 0, True
        self._publish(delta)

    def _publish(self, delta: MetadataDelta) -> None:
        self.image = delta.image()
        self._save_wanted.set()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for callback in self._subscribers:
            callback(delta, self.image)

    # -- the local copy

    async def _persist(self) -> None:
        """Save in groups, with a minimal pause: nothing waits for it. So a full device only makes a restart slower."""
        refusals = 0
        while not (self._stopping and not self._unsaved and not self._jumped):
            await self._save_wanted.wait()
            self._save_wanted.clear()
            try:
                await self._save()
            except NoRoom as error:
                if self._stopping:  # an older copy is as good, only slower to catch up from
                    return
                refusals += 1
                if refusals & (refusals - 1) == 0:  # at growing intervals: it may take days
                    extra = {"cause": str(error), "times": refusals}
                    log.warning("the metadata's local copy waits for room", extra=extra)
                self._save_wanted.set()
                await asyncio.sleep(self._config.room_pause_s)
                continue
            except StorageFailure as error:
                self._saved.set()
                self._on_disk_failed(str(error))
                return
            refusals = 0
            if not self._stopping:
                await asyncio.sleep(self._config.persist_pause_s)
            elif self._unsaved or self._jumped:
                self._save_wanted.set()

    async def _save(self) -> None:
        frames, jumped, image = self._unsaved, self._jumped, self.image
        self._unsaved, self._unsaved_bytes, self._jumped = [], 0, False
        self._saved.set()
        try:
            if jumped:
                await asyncio.to_thread(self._copy.replace, image)
            elif frames:
                await asyncio.to_thread(self._copy.save, b"".join(frames), image)
        except NoRoom:
            self._jumped = True  # next time as a whole
            self._unsaved, self._unsaved_bytes = [], 0
            raise

    # -- requests

    def _cluster_id(self) -> str | None:
        return self.image.cluster_id or self._config.cluster_id

    def _fetch_request(self) -> FetchRequest:
        config = self._config
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=self.image.next_offset,
            last_fetched_epoch=self.image.epoch if self.image.offset >= 0 else -1,
            log_start_offset=-1,
            partition_max_bytes=config.fetch_bytes_max,
        )
        return FetchRequest(
            cluster_id=self._cluster_id(),
            replica_id=-1,
            max_wait_ms=int(config.fetch_wait_s * 1000),
            min_bytes=1,
            max_bytes=config.fetch_bytes_max,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic_id=schema_uuid(ONE_UUID), partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )

    def _snapshot_request(self, end_offset: int, epoch: int, position: int) -> FetchSnapshotRequest:
        topic = FetchSnapshotRequest.TopicSnapshot
        partition = topic.PartitionSnapshot(
            partition=0,
            current_leader_epoch=-1,
            snapshot_id=topic.PartitionSnapshot.SnapshotId(end_offset=end_offset, epoch=epoch),
            position=position,
        )
        return FetchSnapshotRequest(
            cluster_id=self._cluster_id(),
            replica_id=self._config.node_id,
            max_bytes=SNAPSHOT_PART_BYTES,
            topics=[topic(name=METADATA_TOPIC, partitions=[partition])],
        )


class _Piece(NamedTuple):
    """Batches in the bytes from `first` to before `end`, and their changes."""

    first: int
    end: int
    delta: MetadataDelta


def _folding(image: MetadataImage, frames: memoryview, at: int) -> Work[_Piece | None]:
    """The next piece after `image`, from `at` on; None if nothing new is left. Raises ProtocolError and ValueError."""
    delta, expected, epoch = MetadataDelta(image), image.next_offset, image.epoch
    first, end = at, at
    for frame in frames_in(frames, at):
        if frame.next_offset <= expected:
            first = end = frame.end
            continue
        batch = yield from frame.decoding()
        if batch.header.base_offset != expected or batch.header.epoch < epoch:
            raise _Unusable("its records do not follow")
        yield from delta.replaying(batch)
        expected, epoch, end = batch.end_offset, batch.header.epoch, frame.end
        if expected - image.next_offset >= PIECE_RECORDS_MAX:
            break
    if expected == image.next_offset:
        return None
    yield from delta.imaging()
    return _Piece(first, end, delta)
