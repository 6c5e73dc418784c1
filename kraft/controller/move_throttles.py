"""Kafka's replication throttle for moves that the controller itself begins. No I/O.

A moving topic lists all its replicas as throttled, which only affects those out of sync. The rate is the cluster's
default unless an operator has set one.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraft.batches import MetadataRecord
from kraft.controller.policy import ControllerPolicy
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.metadata import MetadataImage
from kraft.records import ConfigRecord, ResourceType
from kraft.topic_names import CLIENT_KEY_TOPICS

LEADER_RATE, FOLLOWER_RATE = RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
ALL_REPLICAS = "*"


def throttles(
    image: MetadataImage, policy: ControllerPolicy, topics: Iterable[str], bytes_per_second: int | None = None
) -> list[MetadataRecord]:
    """Records to commit before the moves of these topics; None stands for the rate of tenants' moves."""
    rate = str(policy.access.move_bytes_per_second if bytes_per_second is None else bytes_per_second)
    cluster = image.configs.cluster()
    records: list[MetadataRecord] = [
        ConfigRecord(ResourceType.BROKER, CLUSTER_DEFAULT, name, rate) for name in RATES if name not in cluster
    ]
    for topic in topics:
        overrides = image.configs.topic(topic)
        records += [
            ConfigRecord(ResourceType.TOPIC, topic, name, ALL_REPLICAS) for name in REPLICAS if name not in overrides
        ]
    return records


def lifted(image: MetadataImage, topic: str) -> list[MetadataRecord]:
    """The topic's move is complete."""
    overrides = image.configs.topic(topic)
    return [
        ConfigRecord(ResourceType.TOPIC, topic, name, None) for name in REPLICAS if overrides.get(name) == ALL_REPLICAS
    ]


def rate_lifted(
    image: MetadataImage, policy: ControllerPolicy, tenant_id: str = "", also: Iterable[int] = ()
) -> list[MetadataRecord]:
    """Removes the rate unless something still moves; `tenant_id`: a tenant that no longer counts as moving; `also`:
    rates of the controller's own besides those of the settings."""
    if any(one != tenant_id for one in image.tenants.moving) or image.topics.index.moving:
        return []
    own = {str(rate) for rate in (policy.access.move_bytes_per_second, policy.balance.bytes_per_second, *also)}
    return [
        ConfigRecord(ResourceType.BROKER, CLUSTER_DEFAULT, name, None)
        for name in RATES
        if image.configs.cluster().get(name) in own
    ]


def may_throttle_ranges(image: MetadataImage, policy: ControllerPolicy, topic: str) -> bool:
    """Whether the controller may set the throttle and later recognize it as its own: not if an operator has set one."""
    rate, cluster = str(policy.access.move_bytes_per_second), image.configs.cluster()
    overrides = image.configs.topic(topic)
    return (
        policy.access.move_bytes_per_second > 0
        and all(cluster.get(name, rate) == rate for name in RATES)
        and all(overrides.get(name, ALL_REPLICAS) == ALL_REPLICAS for name in REPLICAS)
    )


def ranges_lifted(image: MetadataImage, policy: ControllerPolicy) -> list[MetadataRecord]:
    """Removes what was set for moves of internal topics with ranges, if none is under way."""
    rate = str(policy.access.move_bytes_per_second)
    if any(image.configs.cluster().get(name) != rate for name in RATES):
        return []
    records = [record for topic in CLIENT_KEY_TOPICS for record in lifted(image, topic)]
    return records + rate_lifted(image, policy) if records else []
