"""The records of `__consumer_offsets` as bytes, in Apache Kafka's own schemas, so that its tools can read them.

Source: OffsetCommitKey/Value, GroupMetadataKey/Value of Apache Kafka 4.1 (group-coordinator message schemas). Every key
and value begins with its version (int16); a key's version identifies its kind. Written: offset commits as version 3, as
1 with an expiry time, as 4 with a topic id (which all current brokers send); group metadata as version 3. Read: all
versions up to 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from broker.coordination.groups.values import NO_EPOCH, NO_TIME, CommittedOffset, GroupMetadata, MemberMetadata
from broker.coordination.shard import CoordinatorRecord
from common.identifiers import UUID_BYTES, ZERO_UUID

OFFSET_KEY_VERSIONS = (0, 1)
OFFSET_KEY_PREFIXES = (b"\0\1", b"\0\0")  # these versions, as keys begin
OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
GROUP_VALUE_VERSION = 3
VALUE_VERSION_MAX = 4
FIRST_FLEXIBLE_VERSION = 4
TOPIC_ID_TAG = 0

_SHORT = Struct(">h")
_INT = Struct(">i")
_LONG = Struct(">q")
_OFFSET_EPOCH_SIZE = Struct(">qiB")
_OFFSET_KEY = _SHORT.pack(OFFSET_KEY_VERSION)
_COMMON_OFFSET_VERSION = b"\0\4"
_SHORT_METADATA_MAX = 0x7F  # the size takes one byte
_ONE_TOPIC_ID = bytes((1, TOPIC_ID_TAG, UUID_BYTES))


class UnreadableRecord(ValueError):
    """Bytes that do not match the schema of their version."""


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    group_id: str


class _Writer:
    """Fields of the non-flexible versions, one after another."""

    __slots__ = ("out",)

    def __init__(self, version: int) -> None:
        self.out = bytearray(_SHORT.pack(version))

    def int16(self, value: int) -> None:
        self.out += _SHORT.pack(value)

    def int32(self, value: int) -> None:
        self.out += _INT.pack(value)

    def int64(self, value: int) -> None:
        self.out += _LONG.pack(value)

    def string(self, value: str | None) -> None:
        if value is None:
            self.out += _SHORT.pack(-1)
        else:
            data = value.encode()
            self.out += _SHORT.pack(len(data))
            self.out += data

    def data(self, value: bytes) -> None:
        self.out += _INT.pack(len(value))
        self.out += value

    def raw(self, value: bytes) -> None:
        self.out += value

    def unsigned_varint(self, value: int) -> None:
        while value > 0x7F:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)


class _Reader:
    """Fields in order; `flexible` chooses compact lengths and tagged fields."""

    __slots__ = ("_at", "_bytes", "flexible")

    def __init__(self, data: bytes) -> None:
        self._bytes = data
        self._at = 0
        self.flexible = False

    def version(self) -> int:
        """Read the value's version, which decides how its other fields are read."""
        version = self.int16()
        if not 0 <= version <= VALUE_VERSION_MAX:
            raise UnreadableRecord(f"version {version} is not known")
        self.flexible = version >= FIRST_FLEXIBLE_VERSION
        return version

    def int16(self) -> int:
        (value,) = _SHORT.unpack_from(self._bytes, self._at)
        self._at += 2
        return int(value)

    def int32(self) -> int:
        (value,) = _INT.unpack_from(self._bytes, self._at)
        self._at += 4
        return int(value)

    def int64(self) -> int:
        (value,) = _LONG.unpack_from(self._bytes, self._at)
        self._at += 8
        return int(value)

    def raw(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._bytes):
            raise UnreadableRecord("a length beyond the record's end")
        self._at += size
        return self._bytes[self._at - size : self._at]

    def unsigned_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise UnreadableRecord("a length of more than 32 bits")

    def nullable_string(self) -> str | None:
        size = self.unsigned_varint() - 1 if self.flexible else self.int16()
        return None if size == -1 else self.raw(size).decode()

    def string(self) -> str:
        return self.nullable_string() or ""

    def data(self) -> bytes:
        return self.raw(self.unsigned_varint() - 1 if self.flexible else self.int32())

    def count(self) -> int:
        count = self.unsigned_varint() - 1 if self.flexible else self.int32()
        if count > len(self._bytes) - self._at:
            raise UnreadableRecord("more elements than bytes")
        return max(count, 0)

    def tagged_fields(self) -> dict[int, bytes]:
        if not self.flexible:
            return {}
        return {self.unsigned_varint(): self.raw(self.unsigned_varint()) for _ in range(self.unsigned_varint())}


# keys -----------------------------------------------------------------------------------------------------


def encode_place(topic: str, partition: int) -> bytes:
    """Topic and partition, as they end the key of an offset."""
    name = topic.encode()
    return b"".join((_SHORT.pack(len(name)), name, _INT.pack(partition)))


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    name = group_id.encode()
    return b"".join((_OFFSET_KEY, _SHORT.pack(len(name)), name, encode_place(topic, partition)))


def encode_group_key(group_id: str) -> bytes:
    writer = _Writer(GROUP_KEY_VERSION)
    writer.string(group_id)
    return bytes(writer.out)


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """None for an unknown kind of record. Raises UnreadableRecord."""
    try:
        reader = _Reader(key)
        version = reader.int16()
        if version in OFFSET_KEY_VERSIONS:
            return _decode_offset_key(key)
        if version == GROUP_KEY_VERSION:
            return GroupKey(reader.string())
    except (struct_error, UnicodeDecodeError) as error:
        raise UnreadableRecord("a truncated or invalid key") from error
    return None


def _decode_offset_key(key: bytes) -> OffsetKey:
    (size,) = _SHORT.unpack_from(key, _SHORT.size)
    at = 2 * _SHORT.size + size
    (topic_size,) = _SHORT.unpack_from(key, at)
    topic_at = at + _SHORT.size
    if size < 0 or topic_size < 0:
        raise UnreadableRecord("an offset key without a group or a topic")
    (partition,) = _INT.unpack_from(key, topic_at + topic_size)
    group_id, topic = key[2 * _SHORT.size : at], key[topic_at : topic_at + topic_size]
    return OffsetKey(group_id.decode(), topic.decode(), partition)


# values ---------------------------------------------------------------------------------------------------


def encode_offset_value(committed: CommittedOffset) -> bytes:
    if committed.expire_timestamp != NO_TIME:
        writer = _Writer(1)
        writer.int64(committed.offset)
        writer.string(committed.metadata)
        writer.int64(committed.commit_timestamp)
        writer.int64(committed.expire_timestamp)
        return bytes(writer.out)
    flexible = committed.topic_id != ZERO_UUID
    writer = _Writer(FIRST_FLEXIBLE_VERSION if flexible else 3)
    writer.int64(committed.offset)
    writer.int32(committed.leader_epoch)
    if not flexible:
        writer.string(committed.metadata)
        writer.int64(committed.commit_timestamp)
        return bytes(writer.out)
    metadata = committed.metadata.encode()
    writer.unsigned_varint(len(metadata) + 1)
    writer.raw(metadata)
    writer.int64(committed.commit_timestamp)
    writer.raw(_ONE_TOPIC_ID + committed.topic_id)
    return bytes(writer.out)


def decode_offset_value(value: bytes) -> CommittedOffset:
    """Raises UnreadableRecord."""
    try:
        if value[:2] == _COMMON_OFFSET_VERSION:
            common = _decode_common_offset(value)
            if common is not None:
                return common
        reader = _Reader(value)
        version = reader.version()
        offset = reader.int64()
        leader_epoch = reader.int32() if version >= 3 else NO_EPOCH
        metadata = reader.string()
        commit_timestamp = reader.int64()
        expire_timestamp = reader.int64() if version == 1 else NO_TIME
        topic_id = reader.tagged_fields().get(TOPIC_ID_TAG, ZERO_UUID)
    except (struct_error, UnicodeDecodeError) as error:
        raise UnreadableRecord("a truncated or invalid committed offset") from error
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id)


def _decode_common_offset(value: bytes) -> CommittedOffset | None:
    """Decode version 4 with short metadata and a topic id in one step, because a load reads hundreds of thousands. None
    for any other."""
    offset, leader_epoch, size = _OFFSET_EPOCH_SIZE.unpack_from(value, _SHORT.size)
    at = _SHORT.size + _OFFSET_EPOCH_SIZE.size
    end = at + size - 1
    tags_at = end + _LONG.size
    id_at = tags_at + len(_ONE_TOPIC_ID)
    if not 0 < size <= _SHORT_METADATA_MAX or value[tags_at:id_at] != _ONE_TOPIC_ID or len(value) < id_at + UUID_BYTES:
        return None
    (commit_timestamp,) = _LONG.unpack_from(value, end)
    topic_id = value[id_at : id_at + UUID_BYTES]
    return CommittedOffset(offset, leader_epoch, value[at:end].decode(), commit_timestamp, NO_TIME, topic_id)


def encode_group_value(group: GroupMetadata) -> bytes:
    writer = _Writer(GROUP_VALUE_VERSION)
    writer.string(group.protocol_type)
    writer.int32(group.generation)
    writer.string(group.protocol)
    writer.string(group.leader)
    writer.int64(group.state_timestamp)
    writer.int32(len(group.members))
    for member in group.members:
        writer.string(member.member_id)
        writer.string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.data(member.subscription)
        writer.data(member.assignment)
    return bytes(writer.out)


def decode_group_value(value: bytes) -> GroupMetadata:
    """Raises UnreadableRecord."""
    head, members = read_group_value(value)
    return head._replace(members=tuple(members))


def read_group_value(value: bytes) -> tuple[GroupMetadata, Iterator[MemberMetadata]]:
    """The group without its members, and an iterator that decodes them. Raises UnreadableRecord, also from the
    iterator."""
    try:
        reader = _Reader(value)
        version = reader.version()
        protocol_type = reader.string()
        generation = reader.int32()
        protocol = reader.nullable_string()
        leader = reader.nullable_string()
        state_timestamp = reader.int64() if version >= 2 else NO_TIME
        count = reader.count()
    except (struct_error, UnicodeDecodeError) as error:
        raise UnreadableRecord("truncated or invalid group metadata") from error
    head = GroupMetadata(protocol_type, generation, protocol, leader, state_timestamp)
    return head, _read_members(reader, version, count)


def _read_members(reader: _Reader, version: int, count: int) -> Iterator[MemberMetadata]:
    try:
        for _ in range(count):
            yield _decode_member(reader, version)
        reader.tagged_fields()
    except (struct_error, UnicodeDecodeError) as error:
        raise UnreadableRecord("truncated or invalid group metadata") from error


def _decode_member(reader: _Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    subscription = reader.data()
    assignment = reader.data()
    reader.tagged_fields()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


# records --------------------------------------------------------------------------------------------------


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> CoordinatorRecord:
    """None removes the offset."""
    value = None if committed is None else encode_offset_value(committed)
    return CoordinatorRecord(encode_offset_key(group_id, topic, partition), value)


def group_record(group_id: str, group: GroupMetadata | None) -> CoordinatorRecord:
    """None removes the group."""
    return CoordinatorRecord(encode_group_key(group_id), None if group is None else encode_group_value(group))
