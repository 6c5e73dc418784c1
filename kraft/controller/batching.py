"""Divides the records of a group of decisions into batches. No I/O.

Records that must be atomic stay in one batch: a topic with its partitions and settings, the settings of one resource.
Independent records may be separated, so that a batch is replayed within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kraft.batches import MetadataRecord
from kraft.records import (
    PIECE_BYTES_MAX,
    PIECE_RECORDS_MAX,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)


class _Units:
    """Finds where a batch may end: before a record that does not belong to the previous one."""

    def __init__(self) -> None:
        self._topic_id = b""
        self._name: str | None = None  # of the topic that is being created
        self._resource: tuple[ResourceType, str] | None = None

    def begins(self, record: MetadataRecord) -> bool:
        if isinstance(record, PartitionChangeRecord | RemoveTopicRecord):
            return True
        if isinstance(record, TopicRecord):
            self._topic_id, self._name = record.topic_id, record.name
            return True
        if isinstance(record, PartitionRecord):
            is_other = record.topic_id != self._topic_id
            self._topic_id = record.topic_id
            return is_other
        if isinstance(record, ConfigRecord):
            resource = (record.resource_type, record.resource_name)
            is_other = resource not in (self._resource, (ResourceType.TOPIC, self._name))
            self._resource = resource
            return is_other
        return False


def pieces(records: Sequence[MetadataRecord], sizes: Sequence[int], bytes_max: int) -> Iterator[slice]:
    """Batches of bounded size, except for records that belong together, which have at most `bytes_max`. `sizes`: the
    encoded sizes."""
    return _cut(records, sizes, bytes_max, _Units().begins)


def chunks(records: Sequence[MetadataRecord], sizes: Sequence[int], bytes_max: int) -> Iterator[slice]:
    """Batches of up to `bytes_max`, while nodes may run that do not support pieces."""
    return _cut(records, sizes, bytes_max, lambda _: False)


def _cut(
    records: Sequence[MetadataRecord],
    sizes: Sequence[int],
    bytes_max: int,
    begins: Callable[[MetadataRecord], bool],
) -> Iterator[slice]:
    """Batches of bounded size that end where something `begins`, and at the latest before they exceed `bytes_max`."""
    start = cut = size = 0  # a batch from `start` on may end before record number `cut`
    for number, record in enumerate(records):
        if begins(record):
            cut = number
        if cut > start and (number - start >= PIECE_RECORDS_MAX or size >= PIECE_BYTES_MAX):
            yield slice(start, cut)
            start, size = cut, sum(sizes[cut:number])
        if number > start and size + sizes[number] > bytes_max:
            yield slice(start, number)
            start, size = number, 0
        size += sizes[number]
    if records:
        yield slice(start, len(records))
