"""Where a look-up by time found its batch, and which of its records it is."""

from typing import NamedTuple

from common.errors import ProtocolError
from records.batch import BatchHeader
from records.record import decode_records
from storage.segments.batch_walk import walk
from storage.segments.region import Region

INFLATED_BYTES_MAX = 128 << 20  # of the one batch that a look-up by time decodes


class TimestampHit(NamedTuple):
    """Where a timestamp was found: `region` begins with the first batch that may hold it and ends with its segment.

    `header` is that batch's. `resolve` looks into the records and may run in a thread.
    """

    header: BatchHeader
    region: Region
    timestamp: int
    least_offset: int

    def resolve(self) -> tuple[int, int, int]:
        """(timestamp, offset, leader epoch) of the record; the caller releases `region` afterwards, on the loop.

        A batch whose records lie is answered by its header: its first offset and its largest timestamp.
        """
        region = self.region
        for position, header in walk(region.file, region.position, region.position + region.length):
            if header.max_timestamp >= self.timestamp:
                found = self._record_in(header, region.file.pread(header.size, position))
                if found is not None:
                    return found
        return self._by_header(self.header)

    def _record_in(self, header: BatchHeader, data: bytes) -> tuple[int, int, int] | None:
        """None when all its records are older, or lie below the log's start."""
        try:
            records = decode_records(memoryview(data), 0, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
        except (ProtocolError, ValueError):
            return self._by_header(header)
        for record in records:
            if record.timestamp >= self.timestamp and record.offset >= self.least_offset:
                return record.timestamp, record.offset, header.leader_epoch
        return None

    def _by_header(self, header: BatchHeader) -> tuple[int, int, int]:
        return header.max_timestamp, max(header.base_offset, self.least_offset), header.leader_epoch
