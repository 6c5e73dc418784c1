"""How the records of a group of decisions become batches. Pure.

What has to become true together stays in one batch: a topic with its partitions and settings, the settings of one
resource. What is a matter of its own may be parted, so that a batch is replayed within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kraft.records import (
    PIECE_BYTES_MAX,
    PIECE_RECORDS_MAX,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)


class _Units:
    """Tells where a batch may end: in front of a record that does not belong to the one before it."""

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
    """Batches of bounded size, but for one whose records belong together; that is at most `bytes_max`. `sizes` are the
    records' encoded sizes."""
    return _cut(records, sizes, bytes_max, _Units().begins)


def chunks(records: Sequence[MetadataRecord], sizes: Sequence[int], bytes_max: int) -> Iterator[slice]:
    """Batches of up to `bytes_max`, while nodes may run that know nothing of pieces."""
    return _cut(records, sizes, bytes_max, lambda _: False)


def _cut(
    records: Sequence[MetadataRecord],
    sizes: Sequence[int],
    bytes_max: int,
    begins: Callable[[MetadataRecord], bool],
) -> Iterator[slice]:
    """Batches of bounded size that end where something `begins`, or else before they exceed `bytes_max`."""
    start = cut = size = 0  # a batch from `start` on may end before the record number `cut`
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
