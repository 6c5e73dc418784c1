"""Settings of one broker, and values that the command derives from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.audit.config import AuditConfig
from broker.coordination.groups.config import GroupConfig
from broker.coordination.transactions.config import TransactionConfig
from broker.listeners import Listen
from broker.partitions.config import LogDuties
from broker.replication.config import ReplicationConfig
from broker.security.config import SecurityConfig
from broker.tier.config import TierConfig
from common.node_settings.controllers import ControllerSettings
from common.node_settings.health import HealthSettings
from common.node_settings.identity import NodeSettings
from common.node_settings.monitoring import MonitoringSettings
from common.node_settings.pressure import PressureSettings
from common.node_settings.proxy import ProxySettings
from common.node_settings.quotas import QuotaSettings
from common.node_settings.shares import ShareSettings
from common.node_settings.telemetry import TelemetrySettings
from common.node_settings.tenants import TenantSettings
from common.node_settings.tier import TierReads, TierStateSettings
from common.node_settings.topics import TopicDefaults
from common.node_settings.transactions import VerificationSettings
from common.ports import Address
from common.settings import same
from wire.server import ServerLimits


@dataclass(slots=True, frozen=True)
class BrokerConfig:
    """One broker. `node_settings`: the node's static settings, parsed, by Kafka's name. Topic settings take their
    defaults from them, and DescribeConfigs shows their source."""

    node_id: int
    listeners: tuple[Listen, ...]
    controllers: dict[int, Address]
    secret: bytes
    rack: str = same(NodeSettings, "rack")
    cell: str = same(TenantSettings, "cell")
    log_dirs: str = same(NodeSettings, "log_dirs")
    cluster_id: str = ""  # empty: taken from the metadata quorum
    sessions: ControllerSettings = field(default_factory=ControllerSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    topics: TopicDefaults = field(default_factory=TopicDefaults)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    shares: ShareSettings = field(default_factory=ShareSettings)
    pressure: PressureSettings = field(default_factory=PressureSettings)
    tenants: TenantSettings = field(default_factory=TenantSettings)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    duties: LogDuties = field(default_factory=LogDuties)
    groups: GroupConfig = field(default_factory=GroupConfig)
    transactions: TransactionConfig = field(default_factory=TransactionConfig)
    verification: VerificationSettings = field(default_factory=VerificationSettings)
    tier: TierConfig = field(default_factory=TierConfig)
    tier_state: TierStateSettings = field(default_factory=TierStateSettings)
    tier_reads: TierReads = field(default_factory=TierReads)
    audit: AuditConfig = field(default_factory=AuditConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    monitoring: MonitoringSettings = field(default_factory=MonitoringSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    proxy_domain: str = same(ProxySettings, "domain")  # domain of tenants' host names; empty: brokers' own addresses
    proxy_port: int = same(ProxySettings, "port")  # the proxies' port under these names
    node_settings: dict[str, object] = field(default_factory=dict)

    @property
    def internal_listener(self) -> Listen:
        """The internal listener; ValueError if there is none."""
        for listen in self.listeners:
            if listen.kind == "internal":
                return listen
        raise ValueError("a broker needs an internal listener")
