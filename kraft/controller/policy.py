"""What a controller is told by its settings, and how a topic's own settings go before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.topic_settings import TOPIC_SETTINGS
from kraft.image.cells import BANDWIDTH_PER_BROKER, REPLICAS_PER_BROKER_MAX, TENANTS_MAX
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import ACLS_MAX, CONNECTION_RATE, CONNECTIONS_MAX, KEYS_MAX, PARTITIONS_MAX, TenantImage
from kraft.records import PIECE_RECORDS_MAX

MIN_ISR = "min.insync.replicas"
CORDONED = "tidelog.broker.cordoned"
UNCLEAN_ELECTION = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class AccessLimits:
    """How many there may be of what operators and tenants make; the settings that set them stand beside.

    `tenant` and `cell` hold the defaults of the limits that a tenant and a cell may have of their own, by name.
    """

    acls_max: int = 100_000  # tidelog.acls.max
    users_max: int = 10_000  # tidelog.users.max
    tenants_max: int = 10_000  # tidelog.tenants.max
    tenant: Mapping[str, int] = field(
        default_factory=lambda: {
            PARTITIONS_MAX: 1_000,
            CONNECTIONS_MAX: 1_000,
            CONNECTION_RATE: 100,
            KEYS_MAX: 100,
            ACLS_MAX: 1_000,
        }
    )  # tidelog.tenant.<limit>
    cell: Mapping[str, int] = field(
        default_factory=lambda: {REPLICAS_PER_BROKER_MAX: 4_000, TENANTS_MAX: 1_000, BANDWIDTH_PER_BROKER: 250_000_000}
    )  # tidelog.cell.<limit>
    move_partitions_max: int = 20  # tidelog.tenant.move.partitions.max
    move_bytes_per_second: int = 50_000_000  # tidelog.tenant.move.bytes.per.second


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """Static defaults of the cluster; the settings that set them stand beside.

    `static` holds the broker settings that were given explicitly, as text: the synonyms of topic settings.
    """

    num_partitions: int = 1  # num.partitions
    default_replication_factor: int = 1  # default.replication.factor
    min_insync_replicas: int = 1  # min.insync.replicas
    group_replication_factor: int = 1  # offsets.topic.replication.factor
    unclean_leader_election: bool = False  # unclean.leader.election.enable
    delete_topic_enable: bool = True  # delete.topic.enable
    partitions_per_request_max: int = 10_000
    piece_records_max: int = PIECE_RECORDS_MAX // 2
    """Changes of partitions in one commit, where an event concerns many."""
    static: Mapping[str, str] = field(default_factory=dict)
    access: AccessLimits = field(default_factory=AccessLimits)


def tenant_limit(tenant: TenantImage, limit: str, policy: ControllerPolicy) -> int:
    """The tenant's own limit of that name, else the setting's."""
    own = tenant.limits.get(limit)
    return policy.access.tenant[limit] if own is None else own


def min_insync_replicas(image: MetadataImage, topic_name: str, policy: ControllerPolicy) -> int:
    """The topic's override, else the cluster's, else the node's setting."""
    text = image.configs.topic(topic_name).get(MIN_ISR) or image.configs.cluster().get(MIN_ISR)
    return policy.min_insync_replicas if text is None else _integer(text, policy.min_insync_replicas)


def unclean_leader_election(image: MetadataImage, topic_name: str, policy: ControllerPolicy) -> bool:
    text = image.configs.topic(topic_name).get(UNCLEAN_ELECTION) or image.configs.cluster().get(UNCLEAN_ELECTION)
    return policy.unclean_leader_election if text is None else text.strip().lower() == "true"


def is_cordoned(image: MetadataImage, broker_id: int) -> bool:
    """Whether new replicas stay away from that broker because it is being emptied."""
    return image.configs.broker(broker_id).get(CORDONED, "").strip().lower() == "true"


def _integer(text: str, otherwise: int) -> int:
    try:
        return int(TOPIC_SETTINGS[MIN_ISR].parse(text))
    except ValueError:  # checked before it was committed, perhaps by an older version with other ranges
        return otherwise
