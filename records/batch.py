"""The 61-byte header of a record batch (magic 2): read, checked and stamped in place, without reading its records.

Layout, big-endian: base offset, batch length | partition leader epoch, magic, CRC | attributes, last offset delta,
base timestamp, max timestamp, producer id, producer epoch, base sequence, record count. The CRC-32C covers
everything from the attributes on, so a leader may write base offset and epoch into the received bytes.

Source: Apache Kafka 4.1 documentation, section "Message Format"; KIP-98 (producer fields), KIP-534 (delete horizon).
"""

from collections.abc import Iterator
from struct import Struct

import msgspec
from msgspec.structs import astuple

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError

HEADER_BYTES = 61
OLDEST_RECORD_BYTES = 14  # the least that a message of format 0 has after the prefix
PREFIX_BYTES = 12  # base offset and batch length: enough to step to the next batch
MAGIC = 2
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21  # first byte that the CRC covers
MAX_TIMESTAMP_AT = 35

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE = 0x08  # set: log append time
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # set: the base timestamp is the time after which tombstones may be removed

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
SEQUENCE_MASK = 0x7FFFFFFF  # sequences run from 0 to 2**31 - 1 and begin again at 0
CODEC_MAX = 4

_HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qi")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The fields of a batch's header. Timestamps are milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    def stamped(self, base_offset: int, leader_epoch: int) -> "BatchHeader":
        """The header after `stamp` has written these."""
        return BatchHeader(
            base_offset,
            self.batch_length,
            leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """The number of the codec, see `records.compression.Compression`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may be removed; None until a cleaning has set it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record that the batch was produced with; -1 without a producer's sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


class ProduceLimits(msgspec.Struct, frozen=True, gc=False):
    """A topic's limits for produced batches."""

    batch_bytes_max: int = 1_048_588  # max.message.bytes
    timestamp_before_max_ms: int = 2**63 - 1  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    log_append_time: bool = False  # message.timestamp.type: the client's timestamps do not count


def read_header(view: memoryview | bytes | bytearray, at: int) -> BatchHeader:
    """The header at `at`, unchecked. struct.error when fewer than `HEADER_BYTES` bytes are there."""
    return BatchHeader(*_HEADER.unpack_from(view, at))


def has_valid_crc(view: memoryview, at: int, header: BatchHeader) -> bool:
    """Whether the batch at `at` fits its CRC. Copies nothing."""
    return bool(crc32c(view[at + CRC_FROM : at + header.batch_length + PREFIX_BYTES]) == header.crc)


def iterate_batches(
    view: memoryview, at: int, end: int, *, verify_crc: bool = True
) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch of `view[at:end]` with its position, without a truncated last one.

    Raises ProtocolError(CORRUPT_MESSAGE) for a length below the header's, another magic, a last offset before the
    first, or a wrong CRC. Every batch yielded before is sound.
    """
    while end - at >= HEADER_BYTES:
        header = BatchHeader(*_HEADER.unpack_from(view, at))
        size = header.batch_length + PREFIX_BYTES
        if size < HEADER_BYTES or header.magic != MAGIC or header.last_offset_delta < 0:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"no record batch at position {at}")
        if size > end - at:
            return
        if verify_crc and not has_valid_crc(view, at, header):
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"wrong CRC of the record batch at position {at}")
        yield at, header
        at += size


def is_transactional(view: memoryview | bytes | bytearray, at: int, end: int) -> bool:
    """Whether a client's unchecked bytes claim to be a transactional batch."""
    return end - at >= HEADER_BYTES and bool(_ATTRIBUTES.unpack_from(view, at + CRC_FROM)[0] & TRANSACTIONAL)


def check_produced(
    view: memoryview, at: int, end: int, limits: ProduceLimits, now_ms: int, *, transactional: bool = False
) -> BatchHeader:
    """The header of the one batch that a client sent as `view[at:end]`, after all checks of a header.

    `transactional`: whether the request has a transactional id that the client may write under.

    Raises ProtocolError: INVALID_RECORD (none or several batches, one that is cut off, message formats 0 and 1,
    inconsistent offsets or count, a base offset, control batches, producer fields), CORRUPT_MESSAGE (sizes, magic,
    CRC), MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, TRANSACTIONAL_ID_AUTHORIZATION_FAILED (a transactional batch without
    `transactional`).
    """
    room = end - at
    if room < HEADER_BYTES:
        raise _misshapen(view, at, room)
    header = BatchHeader(*_HEADER.unpack_from(view, at))
    size = header.batch_length + PREFIX_BYTES
    if header.magic != MAGIC or not HEADER_BYTES <= size <= room:
        raise _misshapen(view, at, room)
    if size > limits.batch_bytes_max:
        message = f"a record batch of {size} bytes is over the limit of {limits.batch_bytes_max} bytes"
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, message)
    if size != room:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
    if crc32c(view[at + CRC_FROM : end]) != header.crc:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "wrong CRC of the record batch")
    _check_fields(header, transactional)
    if not limits.log_append_time:
        _check_timestamps(header, limits, now_ms)
    return header


def _misshapen(view: memoryview, at: int, room: int) -> ProtocolError:
    """Why `room` bytes are not a batch of format 2, with Apache Kafka's codes: CORRUPT_MESSAGE for a whole but damaged
    batch, INVALID_RECORD for a truncated one or an old format."""
    if room <= MAGIC_AT:
        return ProtocolError(ErrorCode.INVALID_RECORD, "no record batch")
    size, magic = int(_PREFIX.unpack_from(view, at)[1]) + PREFIX_BYTES, view[at + MAGIC_AT]
    if size < PREFIX_BYTES + OLDEST_RECORD_BYTES:
        return ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"a record batch of {size} bytes")
    if magic > MAGIC:
        return ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
    if size > room:
        return ProtocolError(ErrorCode.INVALID_RECORD, f"a record batch of {size} bytes in {room} bytes")
    if magic != MAGIC:
        return ProtocolError(ErrorCode.INVALID_RECORD, "only message format 2 is accepted")
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, "a record batch shorter than its header")


def _check_fields(header: BatchHeader, transactional: bool) -> None:
    attributes = header.attributes
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        message = f"last offset delta {header.last_offset_delta} with {header.count} records"
        raise ProtocolError(ErrorCode.INVALID_RECORD, message)
    if header.base_offset != 0:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset} where 0 is due")
    if attributes & (CONTROL | DELETE_HORIZON):
        raise ProtocolError(ErrorCode.INVALID_RECORD, "clients may not write control batches or delete horizons")
    if attributes & COMPRESSION_MASK > CODEC_MAX:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"unknown codec {attributes & COMPRESSION_MASK}")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            message = f"epoch {header.producer_epoch}, sequence {header.base_sequence} with a producer id"
            raise ProtocolError(ErrorCode.INVALID_RECORD, message)
    elif header.producer_id != NO_PRODUCER_ID or attributes & TRANSACTIONAL:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"producer id {header.producer_id}")
    if attributes & TRANSACTIONAL and not transactional:
        raise ProtocolError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no transactional id of this client")
    if attributes & TIMESTAMP_TYPE:
        raise ProtocolError(ErrorCode.INVALID_TIMESTAMP, "clients may not set log append time")


def _check_timestamps(header: BatchHeader, limits: ProduceLimits, now_ms: int) -> None:
    """Check the first and the largest timestamp. A record without one (-1) is always valid."""
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp == NO_TIMESTAMP:
            continue
        if now_ms - timestamp > limits.timestamp_before_max_ms or timestamp - now_ms > limits.timestamp_after_max_ms:
            message = f"timestamp {timestamp} is too far from the broker's time {now_ms}"
            raise ProtocolError(ErrorCode.INVALID_TIMESTAMP, message)


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Assign base offset and leader epoch. The CRC covers neither."""
    _OFFSET.pack_into(buffer, at, base_offset)
    _EPOCH.pack_into(buffer, at + PREFIX_BYTES, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, at: int, size: int, now_ms: int) -> None:
    """Give all records of the batch the time `now_ms`.

    Raises ProtocolError(CORRUPT_MESSAGE) when the old CRC is wrong: a new one must not hide damage.
    """
    with memoryview(buffer) as view:
        if crc32c(view[at + CRC_FROM : at + size]) != _CRC.unpack_from(view, at + CRC_AT)[0]:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "wrong CRC of the record batch")
        (attributes,) = _ATTRIBUTES.unpack_from(view, at + CRC_FROM)
        _ATTRIBUTES.pack_into(view, at + CRC_FROM, attributes | TIMESTAMP_TYPE)
        _TIMESTAMP.pack_into(view, at + MAX_TIMESTAMP_AT, now_ms)
        _CRC.pack_into(view, at + CRC_AT, crc32c(view[at + CRC_FROM : at + size]))


def write_header(buffer: bytearray | memoryview, at: int, header: BatchHeader) -> None:
    """Write all fields of `header`, its `crc` included."""
    _HEADER.pack_into(buffer, at, *astuple(header))


def seal(buffer: bytearray | memoryview, at: int, size: int) -> None:
    """Compute and store the CRC of the batch at `at`."""
    with memoryview(buffer) as view:
        _CRC.pack_into(view, at + CRC_AT, crc32c(view[at + CRC_FROM : at + size]))
