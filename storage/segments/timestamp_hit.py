"""The batch found by a look-up by time, and the record in it."""

from typing import NamedTuple

from common.errors import ProtocolError
from records.batch import BatchHeader
from records.record import decode_records
from storage.segments.batch_walk import walk
from storage.segments.region import Region

INFLATED_BYTES_MAX = 128 << 20  # limit for the one batch that a look-up by time decodes


class TimestampHit(NamedTuple):
    """The result of a look-up by time: `region` begins with the first batch that may have the timestamp and ends with
    its segment.

    `header` is that batch's. `resolve` decodes the records and may run in a thread.
    """

    header: BatchHeader
    region: Region
    timestamp: int
    least_offset: int

    def resolve(self) -> tuple[int, int, int]:
        """(timestamp, offset, leader epoch) of the record; the caller then releases `region`, on the loop.

        If a batch's records are invalid, the header answers: its first offset and its largest timestamp.
        """
        region = self.region
        for position, header in walk(region.file, region.position, region.position + region.length):
            if header.max_timestamp >= self.timestamp:
                found = self._record_in(header, region.file.pread(header.size, position))
                if found is not None:
                    return found
        return self._by_header(self.header)

    def _record_in(self, header: BatchHeader, data: bytes) -> tuple[int, int, int] | None:
        """None if all its records are older, or below the log start."""
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
