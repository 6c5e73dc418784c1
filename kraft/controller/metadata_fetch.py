"""Serves the committed metadata to observers, on every controller: Fetch (1) and FetchSnapshot (59).

A response has the epoch and end offset that this controller has applied, so that an observer can recognize a controller
that is behind. Without contact to a quorum a controller serves nothing, because it may be missing something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from common.errors import ErrorCode
from common.identifiers import ONE_UUID
from common.pacing import Pacer
from kraft.controller.state_machine import MetadataStateMachine
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import encoding
from kraft.records import METADATA_TOPIC
from wire.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    raw_uuid,
    schema_uuid,
)

SNAPSHOTS_KEPT = 2
WAIT_S_MAX = 5.0
FETCH_BYTES_MAX = 1 << 20
SNAPSHOT_PART_BYTES_MAX = 1 << 20
LANE = "metadata-snapshot"
_Wanted = FetchRequest.FetchTopic.FetchPartition
_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData
_SnapshotTopic = FetchSnapshotResponse.TopicSnapshot
_SnapshotPartition = _SnapshotTopic.PartitionSnapshot


class MetadataFetch:
    """`in_touch`: whether this controller hears a leader, or as leader a majority."""

    def __init__(self, machine: MetadataStateMachine, pacer: Pacer, in_touch: Callable[[], bool]) -> None:
        self._machine = machine
        self._pacer = pacer
        self._in_touch = in_touch
        self._moved = asyncio.Event()
        self._snapshots: dict[tuple[int, int], bytes] = {}
        self._encoding = asyncio.Lock()  # many observers ask at once after a restart: encode once for all
        machine.subscribe(self._applied)

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Committed batches from the requested offset on; waits up to `max_wait_ms` for the first."""
        wanted = _metadata_partition(request.topics)
        if wanted is None:
            return FetchResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        refusal = self._refusal(request.cluster_id)
        if refusal is not None:
            return FetchResponse(error_code=int(refusal))
        log, offset = self._machine.log, wanted.fetch_offset
        deadline = asyncio.get_running_loop().time() + min(request.max_wait_ms / 1000, WAIT_S_MAX)
        while log.end_offset == offset and self._in_touch():
            moved = self._moved
            try:
                async with asyncio.timeout_at(deadline):
                    await moved.wait()
            except TimeoutError:
                break
        snapshot_id = await self._snapshot_id() if offset < log.start_offset else None
        refusal = self._refusal(request.cluster_id)
        if refusal is not None:
            return FetchResponse(error_code=int(refusal))
        return FetchResponse(
            error_code=0,
            responses=[
                _Topic(
                    topic=METADATA_TOPIC,
                    topic_id=schema_uuid(ONE_UUID),
                    partitions=[self._answer(wanted, min(request.max_bytes, FETCH_BYTES_MAX), snapshot_id)],
                )
            ],
        )

    def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        """A part of a snapshot whose id an earlier Fetch returned; SNAPSHOT_NOT_FOUND if it was dropped."""
        refusal = self._refusal(request.cluster_id)
        if refusal is not None or not request.topics or not request.topics[0].partitions:
            return FetchSnapshotResponse(error_code=int(refusal or ErrorCode.INVALID_REQUEST), topics=[])
        wanted = request.topics[0].partitions[0]
        snapshot_id = (wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch)
        data = self._snapshots.get(snapshot_id)
        code, part = ErrorCode.NONE, b""
        if data is None:
            code = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= wanted.position < len(data):
            code = ErrorCode.POSITION_OUT_OF_RANGE
        else:
            size = max(1, min(request.max_bytes, SNAPSHOT_PART_BYTES_MAX))
            part = data[wanted.position : wanted.position + size]
        partition = _SnapshotPartition(
            index=0,
            error_code=int(code),
            snapshot_id=_SnapshotPartition.SnapshotId(end_offset=snapshot_id[0], epoch=snapshot_id[1]),
            current_leader=_SnapshotPartition.LeaderIdAndEpoch(
                leader_id=self._machine.image.leader_id, leader_epoch=self._machine.image.epoch
            ),
            size=len(data or b""),
            position=wanted.position,
            unaligned_records=part,
        )
        return FetchSnapshotResponse(error_code=0, topics=[_SnapshotTopic(name=METADATA_TOPIC, partitions=[partition])])

    def _applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _refusal(self, cluster_id: str | None) -> ErrorCode | None:
        image = self._machine.image
        if cluster_id is not None and image.cluster_id is not None and cluster_id != image.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        return None if self._in_touch() else ErrorCode.BROKER_NOT_AVAILABLE

    def _answer(self, wanted: _Wanted, bytes_max: int, snapshot_id: tuple[int, int] | None) -> _Partition:
        image, log = self._machine.image, self._machine.log
        answer = partial(
            _Partition,
            partition_index=0,
            high_watermark=log.end_offset,
            last_stable_offset=log.end_offset,
            log_start_offset=log.start_offset,
            current_leader=_Partition.LeaderIdAndEpoch(leader_id=image.leader_id, leader_epoch=image.epoch),
        )
        if wanted.fetch_offset > log.end_offset:
            return answer(error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE), records=b"")
        known = log.epoch_before(wanted.fetch_offset)
        if known is not None and wanted.last_fetched_epoch not in (-1, known):
            diverging = _Partition.EpochEndOffset(epoch=known, end_offset=wanted.fetch_offset)
            return answer(error_code=0, diverging_epoch=diverging, records=b"")
        if snapshot_id is not None:
            end_offset, epoch = snapshot_id
            named = _Partition.SnapshotId(end_offset=end_offset, epoch=epoch)
            return answer(error_code=0, snapshot_id=named, records=b"")
        return answer(error_code=0, records=log.read(wanted.fetch_offset, bytes_max) or b"")

    async def _snapshot_id(self) -> tuple[int, int]:
        """A new snapshot, or a recent one from which the log continues."""
        log = self._machine.log
        async with self._encoding:
            for snapshot_id in reversed(self._snapshots):
                if snapshot_id[0] >= log.start_offset:
                    return snapshot_id
            image = self._machine.image
            snapshot_id = (image.next_offset, image.epoch)
            self._snapshots[snapshot_id] = await self._pacer.run(encoding(image), LANE, own=True)
            while len(self._snapshots) > SNAPSHOTS_KEPT:
                del self._snapshots[next(iter(self._snapshots))]
            return snapshot_id


def _metadata_partition(topics: list[FetchRequest.FetchTopic]) -> _Wanted | None:
    """The metadata partition; None if the request asks for anything else."""
    if len(topics) != 1 or len(topics[0].partitions) != 1 or topics[0].partitions[0].partition != 0:
        return None
    is_metadata = raw_uuid(topics[0].topic_id) == ONE_UUID or topics[0].topic == METADATA_TOPIC
    return topics[0].partitions[0] if is_metadata else None
