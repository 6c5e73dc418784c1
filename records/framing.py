"""A check of bounded cost that a produced batch begins with records.

A valid CRC does not show that the bytes are records, and a batch of other bytes stops every consumer of its partition.
Walking over each record would cost as much as appending the batch. So the check reads the lengths of one record per
4 KiB of the batch, at least `RECORDS_MIN`, and of a compressed batch only the first `HEAD_BYTES` inflated. Batches that
end within these limits are checked to their end.
"""

from contextlib import suppress

from common.errors import ErrorCode, ProtocolError
from records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from records.compression import Compression, DamagedData
from records.inflated_head import inflated_head
from records.record import read_varint

Data = bytes | bytearray | memoryview

RECORDS_MIN = 16
RECORDS_SHIFT = 12  # one record per 4 KiB
HEAD_BYTES = 256
RECORD_BYTES_MIN = 6  # attributes, two deltas, two lengths, the number of headers
BEFORE_KEY_BYTES_MAX = 32  # of a record, from its length to its key's length
NULL = -1


def check_framing(buffer: Data, at: int, end: int, header: BatchHeader) -> None:
    """Raises ProtocolError(INVALID_RECORD) when no records follow the header of the batch `buffer[at:end]`."""
    codec, count = header.attributes & COMPRESSION_MASK, header.count
    try:
        if not codec:
            _check_all(buffer, at + HEADER_BYTES, end, count, RECORDS_MIN + ((end - at) >> RECORDS_SHIFT))
            return
        with memoryview(buffer) as view, view[at + HEADER_BYTES : end] as packed:
            head, is_whole = inflated_head(Compression(codec), packed, HEAD_BYTES)
        if is_whole:
            _check_all(head, 0, len(head), count, RECORDS_MIN)
        elif len(head) >= BEFORE_KEY_BYTES_MAX:
            with suppress(IndexError):  # the end of the head
                _walk(head, _after_first(head, 0), min(count, RECORDS_MIN) - 1)
    except DamagedData as error:
        raise _invalid(str(error)) from None
    except IndexError:
        raise _invalid("fewer records than counted") from None
    except ProtocolError as error:  # of a varint: the CRC was right, so a retry is of no use
        raise _invalid(error.message) from None


def _check_all(data: Data, at: int, end: int, count: int, budget: int) -> None:
    """Step over at most `budget` of the `count` records that fill `data[at:end]`."""
    if not count:
        return
    at = _walk(data, _after_first(data, at), min(count, budget) - 1)
    if at > end:
        raise _invalid("a record that is longer than its batch")
    if count <= budget and at != end:
        raise _invalid(f"{end - at} bytes after the last record")


def _walk(data: Data, at: int, count: int) -> int:
    """Step over `count` records; returns the position after them, which may be beyond the data.

    Nearly all lengths have one or two bytes and are read without a call, because this loop is the cost of the check.
    """
    for _ in range(count):
        length = data[at]
        at += 1
        if length >= 0x80:
            if data[at] < 0x80:
                length += (data[at] << 7) - 0x80
                at += 1
            else:
                value, at = read_varint(data, at - 1)
                length = value << 1
        if length < 2 * RECORD_BYTES_MIN or length & 1:  # its lowest bit is the sign
            raise _invalid("a record of less than no fields")
        at += length >> 1
    return at


def _after_first(data: Data, at: int) -> int:
    """The position after the first record of a batch, at `at`, after a check of the fields before its key."""
    length, at = read_varint(data, at)
    stop = at + length
    if data[at + 1] | data[at + 2]:
        _, at = read_varint(data, at + 1)
        offset_delta, at = read_varint(data, at)
    else:
        offset_delta, at = 0, at + 3
    key_length, at = read_varint(data, at)
    if length < RECORD_BYTES_MIN or offset_delta or key_length < NULL or at + key_length >= stop:
        raise _invalid(f"a first record of {length} bytes, offset delta {offset_delta}, key length {key_length}")
    return stop


def _invalid(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, why)
