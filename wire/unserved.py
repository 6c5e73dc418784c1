"""Features of Apache Kafka whose APIs are not served. `wire.apis` says which API belongs to which, README shows it."""

from __future__ import annotations

from msgspec import Struct

NOT_ANNOUNCED = "ApiVersions does not name these APIs: the client itself says UNSUPPORTED_VERSION"


class Unserved(Struct, frozen=True):
    """An unserved feature: `what` it is, and what a client that wants it gets (`seen`)."""

    what: str
    seen: str


CONSUMER_GROUPS = Unserved(
    "The consumer protocol of KIP-848 (`group.protocol=consumer`)",
    f"{NOT_ANNOUNCED}. The classic protocol, which is the default of every client, is served",
)
SHARE_GROUPS = Unserved(
    "Share groups (KIP-932)",
    NOT_ANNOUNCED,
)
STREAMS_GROUPS = Unserved(
    "The streams protocol of KIP-1071",
    f"{NOT_ANNOUNCED}. Kafka Streams uses classic groups by default",
)
LOG_DIRS = Unserved(
    "Several log directories in a broker",
    "brokers report their directories to the controller by it; a broker here has one. No client uses it",
)
KAFKA_QUORUM = Unserved(
    "Apache Kafka's own controllers beside Tidelog's",
    "controllers have a quorum protocol of their own; no client uses these",
)
