"""How the records of a group of decisions become batches. Pure.

What has to become true together stays in one batch: a topic with its partitions and settings, the settings of one
resource. What is a matter of its own may be parted, so that a batch is replayed within milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    encoded_size,
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


def pieces(records: Iterable[MetadataRecord], bytes_max: int) -> Iterator[list[MetadataRecord]]:
    """Batches of bounded size, but for one whose records belong together; that is at most `bytes_max`."""
    units = _Units()
    piece: list[MetadataRecord] = []
    size = cut = 0  # the piece may end before its record number `cut`
    sizes: list[int] = []
    for record in records:
        if units.begins(record):
            cut = len(piece)
        if cut and (len(piece) >= PIECE_RECORDS_MAX or size >= PIECE_BYTES_MAX):
            yield piece[:cut]
            piece, sizes, cut = piece[cut:], sizes[cut:], 0
            size = sum(sizes)
        record_size = encoded_size(record)
        if piece and size + record_size > bytes_max:
            yield piece
            piece, sizes, size, cut = [], [], 0, 0
        piece.append(record)
        sizes.append(record_size)
        size += record_size
    if piece:
        yield piece


def chunks(records: Iterable[MetadataRecord], bytes_max: int) -> Iterator[list[MetadataRecord]]:
    """Batches of up to `bytes_max`, while nodes may run that know nothing of pieces."""
    chunk: list[MetadataRecord] = []
    size = 0
    for record in records:
        record_size = encoded_size(record)
        if chunk and size + record_size > bytes_max:
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += record_size
    if chunk:
        yield chunk
