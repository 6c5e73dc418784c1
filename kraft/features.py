"""Feature levels that this version supports: what a node registers, and what a new cluster begins with."""

from __future__ import annotations

METADATA_VERSION = "metadata.version"
TIDELOG_VERSION = "tidelog.version"
ACCESS_LEVEL = 1
ROOM_LEVEL = 1
PIECES_LEVEL = 2
FLEET_LEVEL = 3

SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (7, 27),
    TIDELOG_VERSION: (0, 3),
    "group.version": (0, 0),
    "transaction.version": (0, 0),
}
"""(lowest, highest) level by name, as nodes of this version register them. Levels are Apache Kafka's (27 is 4.1-IV1);
the groups of KIP-848 and the transactions of KIP-890 will raise the other two. `tidelog.version` is Tidelog's own, for
records that Apache Kafka does not have in this form: 1 adds credentials, ACLs, tenants, keys, cells, and brokers
without room; from 2 on brokers leave their partitions in pieces; 3 adds the records of what runs the fleet: brokers'
health, quotas, and the operations of the balancer."""

INITIAL_LEVELS = {METADATA_VERSION: 27, TIDELOG_VERSION: 3}
