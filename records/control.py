"""Control batches: a broker writes one record each, with the outcome of a transaction.

Key: version int16, type int16 (0 abort, 1 commit). Value of both: version int16, coordinator epoch int32.
Source: KIP-98; other types belong to Apache Kafka's own metadata log and are no markers.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from common.errors import ErrorCode, ProtocolError
from records.builder import build_batch
from records.record import Record, decode_records

MARKER_BYTES_MAX = 64 * 1024
FORMAT = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class MarkerKind(IntEnum):
    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """The end of one producer's transaction in this partition; `timestamp` in milliseconds."""

    kind: MarkerKind
    coordinator_epoch: int
    timestamp: int


def read_marker(view: memoryview, at: int, size: int) -> EndMarker | None:
    """The marker in the control batch at `at`; None when cleaning has emptied it or its type is another one.

    Raises ProtocolError(CORRUPT_MESSAGE) when the bytes are no control record.
    """
    records = decode_records(view, at, size, inflated_bytes_max=MARKER_BYTES_MAX)
    if not records:
        return None
    record = records[0]
    if record.key is None or len(record.key) < _KEY.size:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "a control record without a type")
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (MarkerKind.ABORT, MarkerKind.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "a transaction marker without a coordinator epoch")
    _, coordinator_epoch = _VALUE.unpack_from(record.value)
    return EndMarker(MarkerKind(kind), coordinator_epoch, record.timestamp)


def build_marker(producer_id: int, producer_epoch: int, marker: EndMarker) -> bytearray:
    """The control batch that ends this producer's transaction, without offset and leader epoch."""
    key = _KEY.pack(FORMAT, marker.kind)
    record = Record(0, marker.timestamp, key, _VALUE.pack(FORMAT, marker.coordinator_epoch))
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
