"""The audit logs that a broker exports: the committed part of the `__audit` and `__tier_state` partitions that it
leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from kraft.image.metadata import MetadataImage
from kraft.topic_names import AUDIT_TOPIC, TIER_TOPIC
from records.audit_event import AuditEvent, AuditSource, decode_audit_event
from records.batch import BatchHeader, iterate_batches
from records.record import Record, decode_records
from storage.segments.region import Region
from tiering.exports.audit_export import AuditPiece
from tiering.shard.tier_audit import tier_event

READ_BYTES = 1 << 20
INFLATED_BYTES_MAX = 64 << 20
NAMES_MAX = 10_000

Decode = Callable[[BatchHeader, Record], AuditEvent | None]


class LogFeed:
    """One partition's records as events, from its local log; neither topic is tiered."""

    def __init__(self, partition: Partition, source: str, decode: Decode) -> None:
        self.source = source
        self.scope = partition.index
        self.term = partition.leader_epoch
        self.begin = partition.epoch_start_offset
        self._partition = partition
        self._decode = decode

    async def take(self, position: int) -> AuditPiece | None:
        partition = self._partition
        if partition.leader_epoch != self.term or not partition.is_leader:
            return None
        log = partition.log
        first = max(position, log.local_log_start_offset)
        if first >= partition.high_watermark:
            return None

        def read() -> Region | None:
            return log.read(first, READ_BYTES, partition.high_watermark, only_in_memory=True)

        region = await log.when_in_memory(read)
        if region is None:
            return None
        try:
            end, events = await asyncio.to_thread(lambda: self._events(region.read(), first))
        finally:
            region.release()
        return AuditPiece(first, end, events) if end > first else None

    def _events(self, data: bytes, first: int) -> tuple[int, list[AuditEvent]]:
        """Decode the events; runs in a thread."""
        view = memoryview(data)
        end = first
        events: list[AuditEvent] = []
        for at, header in iterate_batches(view, 0, len(view)):
            end = header.next_offset
            if not header.is_control:
                events += self._of_batch(view, at, header, first)
        return end, events

    def _of_batch(self, view: memoryview, at: int, header: BatchHeader, first: int) -> Iterator[AuditEvent]:
        for record in decode_records(view, at, header.size, inflated_bytes_max=INFLATED_BYTES_MAX):
            if record.offset >= first:
                event = self._decode(header, record)
                if event is not None:
                    yield event


class TopicNames:
    """Adds topic names to the events of `__tier_state`, whose keys only have ids. Names come from the image, or for a
    bounded number of deleted topics from earlier events."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._last_names: dict[str, str] = {}

    def named(self, event: AuditEvent) -> AuditEvent:
        """The event with its topic's name, if known."""
        if event.topic:
            self._last_names.pop(event.topic_id, None)
            self._last_names[event.topic_id] = event.topic
            if len(self._last_names) > NAMES_MAX:
                del self._last_names[next(iter(self._last_names))]
            return event
        topic = self._image().topics.get_by_id(bytes.fromhex(event.topic_id))
        return replace(event, topic=topic.name if topic is not None else self._last_names.get(event.topic_id, ""))


def led_feeds(hosted: HostedPartitions, names: TopicNames) -> list[LogFeed]:
    """The feeds of all partitions that this broker leads now."""
    return [
        LogFeed(partition, source, _decoder(source, partition.index, names))
        for topic, source in ((AUDIT_TOPIC, AuditSource.BROKER), (TIER_TOPIC, AuditSource.TIER))
        for partition in hosted.by_name.get(topic.encode(), {}).values()
        if partition.is_leader
    ]


def _decoder(source: AuditSource, index: int, names: TopicNames) -> Decode:
    if source is AuditSource.BROKER:
        return lambda header, record: _shipped(record)

    def of_tier(header: BatchHeader, record: Record) -> AuditEvent | None:
        event = tier_event(index, header, record)
        return None if event is None else names.named(event)

    return of_tier


def _shipped(record: Record) -> AuditEvent:
    try:
        return decode_audit_event(record.value or b"")
    except ValueError as error:
        message = f"record {record.offset} of {AUDIT_TOPIC} is not an event"
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, message) from error
