"""The partition of an internal topic that holds a key. Only this module computes it.

As in Apache Kafka: the absolute value of Java's String.hashCode, modulo the partition count, of the whole topic or of a
cell's range.
"""

from struct import unpack

from kraft.image.key_ranges import range_to_ask
from kraft.image.metadata import MetadataImage

_HASH_MASK = 0xFFFFFFFF
_SIGN_BIT = 0x80000000
_WORD_BYTES = 8  # of four units, which the last step adds one by one
_BLOCK_BYTES = 512
_EVERY_OTHER_UNIT = int.from_bytes(b"\x00\x00\xff\xff" * (_BLOCK_BYTES // 4), "big")
_EVERY_OTHER_PAIR = int.from_bytes(b"\x00\x00\x00\x00\xff\xff\xff\xff" * (_BLOCK_BYTES // 8), "big")


def java_string_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 code units, in signed 32 bits.

    The polynomial of a block is computed with one large integer, which combines all neighbouring units at once, then
    pairs. So a name of 249 characters costs a quarter of the unit-by-unit loop.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    # the short block comes first, padded with zeros in front
    value, begin, end = 0, 0, len(units) % _BLOCK_BYTES or _BLOCK_BYTES
    while begin < len(units):
        block = int.from_bytes(units[begin:end], "big")
        block = (block >> 16 & _EVERY_OTHER_UNIT) * 31 + (block & _EVERY_OTHER_UNIT)
        block = (block >> 32 & _EVERY_OTHER_PAIR) * 31**2 + (block & _EVERY_OTHER_PAIR)
        words = -(-(end - begin) // _WORD_BYTES)
        for word in unpack(f">{words}Q", block.to_bytes(words * _WORD_BYTES, "big")):
            value = (31**4 * value + word) & _HASH_MASK
        begin, end = end, end + _BLOCK_BYTES
    return value - (1 << 32) if value & _SIGN_BIT else value


def partition_for(key: str, partition_count: int) -> int:
    """The partition, of `partition_count`, whose leader coordinates `key` (a group or transactional id)."""
    value = java_string_hash(key)
    return (0 if value == -_SIGN_BIT else abs(value)) % partition_count


def keeping_partition(image: MetadataImage, topic_name: str, key: str) -> int | None:
    """The partition of an internal topic whose leader serves `key` of a tenant or an operator; None if there is
    none."""
    topic = image.topics.get(topic_name)
    held = range_to_ask(topic, image.tenants.owner(key)) if topic is not None else None
    return None if held is None else held.first + partition_for(key, held.count)


def tier_partition_for(topic_id: bytes, partition: int, partition_count: int) -> int:
    """The partition of `__tier_state` that holds a topic partition's state; an all-zero id is the cluster's own
    record."""
    return partition_for(f"{topic_id.hex()}-{partition}", partition_count)
