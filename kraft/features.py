"""Feature levels that this version supports: what a node registers, and what a new cluster begins with."""

from __future__ import annotations

METADATA_VERSION = "metadata.version"
TIDELOG_VERSION = "tidelog.version"
TRANSACTION_VERSION = "transaction.version"
ACCESS_LEVEL = 1
ROOM_LEVEL = 1
PIECES_LEVEL = 2
FLEET_LEVEL = 3
TELEMETRY_LEVEL = 4
IDS_LEVEL = 4

SUPPORTED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (7, 27),
    TIDELOG_VERSION: (0, 4),
    "group.version": (0, 0),
    TRANSACTION_VERSION: (0, 2),
}
"""(lowest, highest) level by name, as nodes of this version register them. Levels are Apache Kafka's (27 is 4.1-IV1;
the groups of KIP-848 will raise `group.version`). From `transaction.version` 1 on, records of transactions have tagged
fields; 2 is the protocol of KIP-890. `tidelog.version` is Tidelog's own, for records that Apache Kafka does not have in
this form: 1 adds credentials, ACLs, tenants, keys, cells, and brokers without room; from 2 on brokers leave their
partitions in pieces; 3 adds the records of what runs the fleet: brokers' health, quotas, and the operations of the
balancer; 4 adds subscriptions to clients' metrics, and ranges of `__transaction_state`: tenants' transactional ids move
with them."""

INITIAL_LEVELS = {METADATA_VERSION: 27, TIDELOG_VERSION: 4, TRANSACTION_VERSION: 2}
