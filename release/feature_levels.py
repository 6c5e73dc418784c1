"""Which levels of features each release supports. A release adds its row; the last row is what the code has."""

from __future__ import annotations

RELEASES: dict[str, dict[str, tuple[int, int]]] = {
    "0.1.0": {
        "metadata.version": (7, 27),
        "tidelog.version": (0, 4),
        "group.version": (0, 0),
        "transaction.version": (0, 2),
    },
}
"""(lowest, highest), oldest release first."""

ADDED = {
    "metadata.version 27": "Apache Kafka's level of 4.1-IV1; 7 is the lowest (3.3-IV3)",
    "tidelog.version 1": "users, ACLs, tenants, keys, cells, and brokers without room",
    "tidelog.version 2": "brokers that leave their partitions in pieces",
    "tidelog.version 3": "brokers' health, client quotas, and the operations of the balancer",
    "tidelog.version 4": "subscriptions to clients' metrics, and transactional ids that move with their tenant",
    "transaction.version 1": "records of transactions with tagged fields",
    "transaction.version 2": "the protocol of KIP-890",
}


def common_levels(first: str, second: str) -> dict[str, tuple[int, int]]:
    """What nodes of both releases support, by feature; a range whose lowest is above its highest is none."""
    names = RELEASES[first].keys() | RELEASES[second].keys()
    pairs = {name: (RELEASES[first].get(name, (0, 0)), RELEASES[second].get(name, (0, 0))) for name in names}
    return {name: (max(one[0], other[0]), min(one[1], other[1])) for name, (one, other) in pairs.items()}
