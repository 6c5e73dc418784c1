"""Which partition of an internal topic keeps a key: answered here and nowhere else.

As Apache Kafka does it, the absolute value of Java's String.hashCode, modulo the partition count: of the whole topic,
or of the range that a cell owns.
"""

from kraft.image.key_ranges import range_to_ask
from kraft.image.metadata import MetadataImage

_HASH_MASK = 0xFFFFFFFF
_SIGN_BIT = 0x80000000


def java_string_hash(text: str) -> int:
    """String.hashCode: over UTF-16 code units, in 32 bits with sign."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & _HASH_MASK
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
