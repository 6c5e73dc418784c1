"""The records of `__transaction_state` as bytes, in Apache Kafka's own schemas, so that its tools can read them.

Source: TransactionLogKey 0 and TransactionLogValue 0-1 of Apache Kafka 4.2 (transaction-coordinator message schemas).
Written: version 1, whose tagged fields the new protocol needs, or 0 while `transaction.version` is 0. The remembered
epoch has no field in Kafka's schema, so it has a tag of its own, which Kafka's decoder skips. The floor of coordinator
epochs has a key of a version of its own, which Kafka's decoder reports as unknown.
"""

from __future__ import annotations

from struct import Struct, pack, unpack_from
from struct import error as struct_error

from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.values import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Partitions,
    Transaction,
    TransactionState,
)

PLAIN_VERSION, FLEXIBLE_VERSION = 0, 1
PREVIOUS_ID_TAG, NEXT_ID_TAG, VERSION_TAG = 0, 1, 2
LAST_EPOCH_TAG = 10_000  # far above those that Kafka gives
DECODED_PER_UNIT, ENCODED_PER_UNIT = 16, 40  # bytes of a value with many partitions; see `common.pacing`
NAMED_BYTES = 4  # of a topic besides its name and partitions, about

_KEY_VERSION = b"\0\0"
EPOCH_FLOOR_KEY = (10_000).to_bytes(2, "big")  # a version far above those that Kafka gives
_FLOOR = Struct(">hi")  # version 0, floor
_HEAD = Struct(">hqhib")  # version, producer id, epoch, timeout, state
_TIMES = Struct(">qq")
_SHORT, _INT, _LONG = Struct(">h"), Struct(">i"), Struct(">q")
_FEW_INDEXES = [Struct(f">B{count}ix") for count in range(64)]  # their number, and no tagged fields after them
_SHORT_VARINTS = [bytes((number,)) for number in range(0x80)]
_STATES = {int(state): state for state in TransactionState}


class UnreadableRecord(ValueError):
    """Bytes that do not match the schema of their version."""


def encode_key(transactional_id: str) -> bytes:
    name = transactional_id.encode()
    return b"".join((_KEY_VERSION, _SHORT.pack(len(name)), name))


def decode_key(key: bytes) -> str | None:
    """None for an unknown kind of record. Raises UnreadableRecord."""
    if key[:2] != _KEY_VERSION:
        return None
    if len(key) < 4 or key[2] << 8 | key[3] != len(key) - 4:
        raise UnreadableRecord("a truncated or invalid key")
    try:
        return key[4:].decode()
    except UnicodeDecodeError as error:
        raise UnreadableRecord("an invalid transactional id") from error


def transaction_record(transactional_id: str, value: bytes | None) -> CoordinatorRecord:
    """None removes the id."""
    return CoordinatorRecord(encode_key(transactional_id), value)


def encode_epoch_floor(floor: int) -> bytes:
    """What is added to the leader epoch of a partition's coordinator."""
    return _FLOOR.pack(0, floor)


def epoch_floor_record(floor: int) -> CoordinatorRecord:
    return CoordinatorRecord(EPOCH_FLOOR_KEY, encode_epoch_floor(floor))


def decode_epoch_floor(value: bytes | None) -> int:
    """0 for none. Raises UnreadableRecord."""
    if value is None:
        return 0
    try:
        version, floor = _FLOOR.unpack(value)
    except struct_error as error:
        raise UnreadableRecord("a truncated or invalid floor of epochs") from error
    if version or floor < 0:
        raise UnreadableRecord("a floor of epochs of a version that is not known, or below 0")
    return int(floor)


# values ---------------------------------------------------------------------------------------------------


def encode_value(transaction: Transaction, *, flexible: bool) -> bytes:
    """Without `flexible`, what only tagged fields have is lost."""
    version = FLEXIBLE_VERSION if flexible else PLAIN_VERSION
    one = transaction
    parts = [_HEAD.pack(version, one.producer_id, one.producer_epoch, one.timeout_ms, one.state)]
    is_null = one.state is TransactionState.EMPTY
    _add_partitions(parts, None if is_null else one.partitions, flexible=flexible)
    parts.append(_TIMES.pack(one.updated_ms, one.start_ms))
    if flexible:
        _add_tags(parts, one)
    return b"".join(parts)


def _add_partitions(parts: list[bytes], partitions: Partitions | None, *, flexible: bool) -> None:
    if partitions is None:
        parts.append(b"\0" if flexible else _INT.pack(-1))
        return
    if not flexible:
        parts.append(_INT.pack(len(partitions)))
        for topic, indexes in partitions.items():
            name, count = topic.encode(), len(indexes)
            parts.append(pack(f">h{len(name)}si{count}i", len(name), name, count, *indexes))
        return
    parts.append(_varint(len(partitions) + 1))
    for topic, indexes in partitions.items():
        name, count = topic.encode(), len(indexes)
        if count < len(_FEW_INDEXES):
            rest = _FEW_INDEXES[count].pack(count + 1, *indexes)
        else:
            rest = _varint(count + 1) + pack(f">{count}ix", *indexes)
        parts += (_varint(len(name) + 1), name, rest)


def _add_tags(parts: list[bytes], one: Transaction) -> None:
    """Fields that have their default are left out."""
    tags: list[tuple[int, bytes]] = []
    if one.previous_id != NO_PRODUCER_ID:
        tags.append((PREVIOUS_ID_TAG, _LONG.pack(one.previous_id)))
    if one.next_id != NO_PRODUCER_ID:
        tags.append((NEXT_ID_TAG, _LONG.pack(one.next_id)))
    if one.version:
        tags.append((VERSION_TAG, _SHORT.pack(one.version)))
    if one.last_epoch != NO_EPOCH:
        tags.append((LAST_EPOCH_TAG, _SHORT.pack(one.last_epoch)))
    parts.append(_varint(len(tags)))
    for tag, data in tags:
        parts += (_varint(tag), _varint(len(data)), data)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SHORT_VARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def state_of(value: bytes) -> TransactionState:
    """The state alone, for a load, which reads every record. Raises UnreadableRecord."""
    state = _STATES.get(value[_HEAD.size - 1]) if len(value) >= _HEAD.size else None
    if state is None or value[0] or value[1] > FLEXIBLE_VERSION:
        raise UnreadableRecord("a version or a state that is not known")
    return state


def head_of(value: bytes) -> tuple[int, TransactionState]:
    """Producer id and state of a value whose state is known."""
    return _LONG.unpack_from(value, 2)[0], _STATES[value[_HEAD.size - 1]]


def is_plain(value: bytes) -> bool:
    """Whether it lacks tagged fields."""
    return value[1] == PLAIN_VERSION


def updated_ms_of(value: bytes) -> int:
    """The time of the last change, in ms, of a value without an open transaction, whose partitions are none.

    Raises UnreadableRecord.
    """
    at = _HEAD.size + (1 if value[1] == FLEXIBLE_VERSION else _INT.size)
    try:
        return int(_LONG.unpack_from(value, at)[0])
    except struct_error as error:
        raise UnreadableRecord("a truncated or invalid transaction") from error


def decoding_cost(value: bytes) -> int:
    """Units of `common.pacing` that `decode_value` takes."""
    return len(value) // DECODED_PER_UNIT


def encoding_cost(value: bytes) -> int:
    """Units of `common.pacing` that `encode_value` takes for a transaction like the one that has this value."""
    return len(value) // ENCODED_PER_UNIT


def adding_cost(partitions: Partitions) -> int:
    """Units of `common.pacing` that `encode_value` takes for these besides."""
    size = NAMED_BYTES * len(partitions) + sum(map(len, partitions)) + _INT.size * sum(map(len, partitions.values()))
    return size // ENCODED_PER_UNIT


def decode_value(value: bytes) -> Transaction:
    """Raises UnreadableRecord."""
    try:
        return _decode(value)
    except (struct_error, UnicodeDecodeError, IndexError) as error:
        raise UnreadableRecord("a truncated or invalid transaction") from error


def _decode(value: bytes) -> Transaction:
    state = state_of(value)
    version, producer_id, producer_epoch, timeout_ms, _ = _HEAD.unpack_from(value)
    if version == PLAIN_VERSION:
        partitions, at = _plain_partitions(value, _HEAD.size)
    else:
        partitions, at = _flexible_partitions(value, _HEAD.size)
    updated_ms, start_ms = _TIMES.unpack_from(value, at)
    tags = _tags(value, at + _TIMES.size) if version == FLEXIBLE_VERSION else {}
    return Transaction(
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        partitions if state is not TransactionState.EMPTY else {},
        updated_ms,
        start_ms,
        _tagged(tags, PREVIOUS_ID_TAG, _LONG, NO_PRODUCER_ID),
        _tagged(tags, NEXT_ID_TAG, _LONG, NO_PRODUCER_ID),
        _tagged(tags, LAST_EPOCH_TAG, _SHORT, NO_EPOCH),
        _tagged(tags, VERSION_TAG, _SHORT, 0),
    )


def _tagged(tags: dict[int, bytes], tag: int, form: Struct, default: int) -> int:
    data = tags.get(tag)
    return default if data is None else int(form.unpack(data)[0])


def _plain_partitions(value: bytes, at: int) -> tuple[dict[str, tuple[int, ...]], int]:
    partitions: dict[str, tuple[int, ...]] = {}
    (topics,) = _INT.unpack_from(value, at)
    at += _INT.size
    for _ in range(topics):
        (size,) = _SHORT.unpack_from(value, at)
        topic, at = _text(value, at + _SHORT.size, size)
        (count,) = _INT.unpack_from(value, at)
        partitions[topic], at = _indexes(value, at + _INT.size, count)
    return partitions, at


def _flexible_partitions(value: bytes, at: int) -> tuple[dict[str, tuple[int, ...]], int]:
    partitions: dict[str, tuple[int, ...]] = {}
    topics, at = _read_varint(value, at)
    for _ in range(topics - 1):
        size, at = _read_varint(value, at)
        topic, at = _text(value, at, size - 1)
        count, at = _read_varint(value, at)
        partitions[topic], at = _indexes(value, at, count - 1)
        if value[at]:
            at = _after_tags(value, at)
        else:
            at += 1
    return partitions, at


def _text(value: bytes, at: int, size: int) -> tuple[str, int]:
    end = at + size
    if size < 0 or end > len(value):
        raise UnreadableRecord("a length beyond the record's end")
    return value[at:end].decode(), end


def _indexes(value: bytes, at: int, count: int) -> tuple[tuple[int, ...], int]:
    if count < 0 or 4 * count > len(value) - at:
        raise UnreadableRecord("more partitions than bytes")
    return unpack_from(f">{count}i", value, at), at + 4 * count


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    read = value[at]
    if read < 0x80:
        return read, at + 1
    number, shift = read & 0x7F, 7
    while shift <= 28:
        at += 1
        read = value[at]
        number |= (read & 0x7F) << shift
        if read < 0x80:
            return number, at + 1
        shift += 7
    raise UnreadableRecord("a length of more than 32 bits")


def _tags(value: bytes, at: int) -> dict[int, bytes]:
    tags: dict[int, bytes] = {}
    count, at = _read_varint(value, at)
    for _ in range(count):
        tag, at = _read_varint(value, at)
        size, at = _read_varint(value, at)
        if at + size > len(value):
            raise UnreadableRecord("a length beyond the record's end")
        tags[tag] = value[at : at + size]
        at += size
    return tags


def _after_tags(value: bytes, at: int) -> int:
    count, at = _read_varint(value, at)
    for _ in range(count):
        _, at = _read_varint(value, at)
        size, at = _read_varint(value, at)
        at += size
    return at
