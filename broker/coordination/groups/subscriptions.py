"""The topics in consumers' subscription metadata: all that a broker ever reads of it.

Source: ConsumerProtocolSubscription of Apache Kafka 4.1: version (int16), then topics as an array of strings.
Clients exchange these bytes among themselves; bytes of another form only mean that the topics are not known.
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error

_PREFIX = Struct(">hi")
_SHORT = Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that some member subscribes to; None where a subscription cannot be read."""
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            topics.update(_topics(subscription))
        except (struct_error, UnicodeDecodeError, ValueError):
            return None
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str]:
    version, count = _PREFIX.unpack_from(subscription, 0)
    if version < 0 or not 0 <= count <= len(subscription):
        raise ValueError("no subscription")
    at = _PREFIX.size
    topics = []
    for _ in range(count):
        (size,) = _SHORT.unpack_from(subscription, at)
        at += _SHORT.size
        if size < 0 or at + size > len(subscription):
            raise ValueError("a topic beyond the end")
        topics.append(subscription[at : at + size].decode())
        at += size
    return topics
