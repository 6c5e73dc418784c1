"""Whether a produced batch begins as records do: a look whose cost is bounded, whatever the batch holds.

A CRC shows that the bytes are what their writer summed up, and not that they are records. A batch that holds something
else stops every consumer of its partition. Walking over each record would cost as much as appending the batch, so this
look is bounded: the lengths of one record per 4 KiB of the batch, at least `RECORDS_MIN`. Of a compressed batch it sees
what its beginning inflates to, `HEAD_BYTES`. Batches that are over by then are looked at to their end.
"""

from common.errors import ErrorCode, ProtocolError
from records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from records.compression import Compression, DamagedData
from records.inflated_head import inflated_head
from records.record import read_varint

RECORDS_MIN = 16
RECORDS_SHIFT = 12  # one record per 4 KiB
HEAD_BYTES = 256
RECORD_BYTES_MIN = 6  # attributes, two deltas, two lengths, the number of headers
BEFORE_KEY_BYTES_MAX = 32  # of a record, from its length to its key's length
NULL = -1


def check_framing(view: memoryview, at: int, end: int, header: BatchHeader) -> None:
    """Raises ProtocolError(INVALID_RECORD) when what follows the header of the batch `view[at:end]` is no records."""
    codec = header.attributes & COMPRESSION_MASK
    try:
        if not codec:
            budget = RECORDS_MIN + ((end - at) >> RECORDS_SHIFT)
            _walk(view, at + HEADER_BYTES, end, header.count, budget, is_whole=True)
            return
        head, is_whole = inflated_head(Compression(codec), view[at + HEADER_BYTES : end], HEAD_BYTES)
        _walk(head, 0, len(head), header.count, RECORDS_MIN, is_whole=is_whole)
    except DamagedData as error:
        raise _invalid(str(error)) from None
    except IndexError:
        raise _invalid("fewer records than counted") from None
    except ProtocolError as error:  # of a varint: the CRC was right, so sending the batch again is of no use
        raise _invalid(error.message) from None


def _walk(data: memoryview | bytes, at: int, end: int, count: int, budget: int, *, is_whole: bool) -> None:
    """Step over at most `budget` of the `count` records from `at` on. Without `is_whole` more data follows at `end`."""
    for number in range(min(count, budget)):
        if not is_whole and end - at < BEFORE_KEY_BYTES_MAX:
            return
        length = data[at]
        if length < 0x80 and not length & 1:
            length >>= 1
            at += 1
        else:
            length, at = read_varint(data, at)
        stop = at + length
        if length < RECORD_BYTES_MIN or (stop > end and is_whole):
            raise _invalid(f"a record of {length} bytes")
        if not number:
            _check_first(data, at, stop)
        at = stop
    if is_whole and count <= budget and at != end:
        raise _invalid(f"{end - at} bytes after the last record")


def _check_first(data: memoryview | bytes, at: int, stop: int) -> None:
    """The fields before the key of the record `data[at:stop]`, which has to be the batch's first."""
    _, at = read_varint(data, at + 1)
    offset_delta, at = read_varint(data, at)
    key_length, at = read_varint(data, at)
    if offset_delta or key_length < NULL or at + key_length >= stop:
        raise _invalid(f"a first record with offset delta {offset_delta} and key length {key_length}")


def _invalid(why: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, why)
