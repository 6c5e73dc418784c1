"""The topics in consumers' subscription metadata, the only part that a broker reads.

Source: ConsumerProtocolSubscription of Apache Kafka 4.1: version (int16), then topics as an array of strings. Clients
exchange these bytes among themselves; if they have another form, the topics are unknown.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as struct_error

from common.pacing import Work

PIECE_COST = 200  # topics and subscriptions per step; each takes about a microsecond
_PREFIX = Struct(">hi")
_SHORT = Struct(">h")


def reading_topics(subscriptions: Iterable[bytes]) -> Work[frozenset[str] | None]:
    """All topics that members subscribe to; None if a subscription cannot be read."""
    topics: set[str] = set()
    read: set[bytes] = set()
    cost = 0
    for subscription in subscriptions:
        cost += 1
        if subscription not in read:
            read.add(subscription)
            try:
                for topic in _topics(subscription):
                    topics.add(topic)
                    cost += 1
                    if cost >= PIECE_COST:
                        yield cost
                        cost = 0
            except (struct_error, UnicodeDecodeError, ValueError):
                return None
        if cost >= PIECE_COST:
            yield cost
            cost = 0
    return frozenset(topics)


def _topics(subscription: bytes) -> Iterator[str]:
    version, count = _PREFIX.unpack_from(subscription, 0)
    if version < 0 or not 0 <= count <= len(subscription):
        raise ValueError("no subscription")
    at = _PREFIX.size
    for _ in range(count):
        (size,) = _SHORT.unpack_from(subscription, at)
        at += _SHORT.size
        if size < 0 or at + size > len(subscription):
            raise ValueError("a topic beyond the end")
        yield subscription[at : at + size].decode()
        at += size
