"""Which partition of an internal topic keeps a key: answered here and nowhere else.

As Apache Kafka does it, the absolute value of Java's String.hashCode, modulo the partition count: of the whole topic,
or of the range that a cell owns.
"""

from struct import unpack

from kraft.image.key_ranges import range_to_ask
from kraft.image.metadata import MetadataImage

_HASH_MASK = 0xFFFFFFFF
_SIGN_BIT = 0x80000000
_WORD_BYTES = 8  # of four units: what the last step adds up, one by one
_BLOCK_BYTES = 512
_EVERY_OTHER_UNIT = int.from_bytes(b"\x00\x00\xff\xff" * (_BLOCK_BYTES // 4), "big")
_EVERY_OTHER_PAIR = int.from_bytes(b"\x00\x00\x00\x00\xff\xff\xff\xff" * (_BLOCK_BYTES // 8), "big")


def java_string_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, in 32 bits with sign.

    The polynomial of a block is one large number, whose neighbouring units and then pairs are put together all at
    once. So a name of 249 characters costs a quarter of what it costs unit by unit.
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value, begin, end = 0, 0, len(units) % _BLOCK_BYTES or _BLOCK_BYTES  # a short block comes first, behind zeros
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
    """The partition of an internal topic whose leader is asked for `key`, a tenant's or an operator's; None while there
    is none."""
    topic = image.topics.get(topic_name)
    held = range_to_ask(topic, image.tenants.owner(key)) if topic is not None else None
    return None if held is None else held.first + partition_for(key, held.count)


def tier_partition_for(topic_id: bytes, partition: int, partition_count: int) -> int:
    """The partition of `__tier_state` that keeps a topic's partition; all zeros stand for the cluster's own record."""
    return partition_for(f"{topic_id.hex()}-{partition}", partition_count)
