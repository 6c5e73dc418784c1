"""A controller's settings, and their precedence with topics' own settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.node_settings.balance import BalanceSettings
from common.node_settings.groups import GroupSettings
from common.node_settings.quotas import ControllerQuotaSettings
from common.node_settings.replication import ReplicationSettings
from common.node_settings.tenants import TenantSettings
from common.node_settings.topics import TopicDefaults
from common.node_settings.transactions import TransactionSettings
from common.settings import declared, same
from common.topic_settings import TOPIC_SETTINGS, TopicSettings
from kraft.image.cells import BANDWIDTH_PER_BROKER, REPLICAS_PER_BROKER_MAX, TENANTS_MAX, CellImage
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage, limit_of
from kraft.records import PIECE_RECORDS_MAX
from kraft.topic_names import TRANSACTION_TOPIC

MIN_ISR = declared(TopicSettings, "min_insync_replicas").name
CORDONED = declared(ReplicationSettings, "broker_cordoned").name
UNCLEAN_ELECTION = declared(TopicSettings, "unclean_leader_election_enable").name


@dataclass(frozen=True, slots=True)
class ControllerPolicy(TopicDefaults):
    """Static defaults of the cluster.

    `static`: the broker settings that were given explicitly, as text: the synonyms of topic settings.
    """

    group_replication_factor: int = same(GroupSettings, "offsets_topic_replication_factor")
    transaction_replication_factor: int = same(TransactionSettings, "state_replication_factor")
    partitions_per_request_max: int = 10_000
    piece_records_max: int = PIECE_RECORDS_MAX // 2
    """Partition changes in one commit, for an event that concerns many partitions."""
    static: Mapping[str, str] = field(default_factory=dict)
    access: TenantSettings = field(default_factory=TenantSettings)
    quotas: ControllerQuotaSettings = field(default_factory=ControllerQuotaSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)


def tenant_limit(tenant: TenantImage, limit: str, policy: ControllerPolicy) -> int:
    """The tenant's own limit, else the setting's."""
    return limit_of(tenant.limits, limit, policy.access)


def cell_limit(cell: CellImage, limit: str, policy: ControllerPolicy) -> int:
    """The cell's own limit, else the setting's."""
    own, defaults = cell.limits.get(limit), policy.access
    if own is not None:
        return own
    return {
        REPLICAS_PER_BROKER_MAX: defaults.cell_replicas_per_broker_max,
        TENANTS_MAX: defaults.cell_tenants_max,
        BANDWIDTH_PER_BROKER: defaults.cell_bandwidth_per_broker,
    }[limit]


def keyed_topic_factor(topic_name: str, policy: ControllerPolicy) -> int:
    """The replication factor that an internal topic of `CLIENT_KEY_TOPICS` reaches when there are enough brokers."""
    return policy.transaction_replication_factor if topic_name == TRANSACTION_TOPIC else policy.group_replication_factor


def min_insync_replicas(image: MetadataImage, topic_name: str, policy: ControllerPolicy) -> int:
    """The topic's override, else the cluster's, else the node's setting."""
    text = image.configs.topic(topic_name).get(MIN_ISR) or image.configs.cluster().get(MIN_ISR)
    return policy.min_insync_replicas if text is None else _integer(text, policy.min_insync_replicas)


def unclean_leader_election(image: MetadataImage, topic_name: str, policy: ControllerPolicy) -> bool:
    text = image.configs.topic(topic_name).get(UNCLEAN_ELECTION) or image.configs.cluster().get(UNCLEAN_ELECTION)
    return policy.unclean_leader_election_enable if text is None else text.strip().lower() == "true"


def is_cordoned(image: MetadataImage, broker_id: int) -> bool:
    """Whether no new replicas are placed on the broker because it is being emptied."""
    return image.configs.broker(broker_id).get(CORDONED, "").strip().lower() == "true"


def _integer(text: str, otherwise: int) -> int:
    try:
        return int(TOPIC_SETTINGS[MIN_ISR].parse(text))
    except ValueError:  # validated before the commit, perhaps by an older version with other ranges
        return otherwise
