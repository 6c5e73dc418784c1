"""Every setting of a node: Apache Kafka's names where Kafka has the setting (4.1), else `tidelog.…`.

One catalogue serves brokers, controllers and proxies, as one `server.properties` does for Kafka. Nodes of all roles
show and check all settings, so the groups are in this room, below all readers.
"""

from common.node_settings.audit import AuditSettings
from common.node_settings.balance import BalanceSettings
from common.node_settings.connections import ConnectionSettings
from common.node_settings.controllers import ControllerSettings
from common.node_settings.groups import GroupSettings
from common.node_settings.health import HealthSettings
from common.node_settings.identity import NodeSettings
from common.node_settings.inert import INERT_SETTINGS
from common.node_settings.listeners import AcceptSettings, TlsSettings
from common.node_settings.monitoring import MonitoringSettings
from common.node_settings.pressure import PressureSettings
from common.node_settings.proxy import ProxyLimitSettings, ProxySettings
from common.node_settings.quotas import ControllerQuotaSettings, QuotaSettings
from common.node_settings.replication import ReplicationSettings
from common.node_settings.security import SecuritySettings
from common.node_settings.shares import ShareSettings
from common.node_settings.telemetry import TelemetrySettings
from common.node_settings.tenants import TenantSettings
from common.node_settings.tier import TierReads, TierSettings, TierStateSettings
from common.node_settings.topics import BrokerLogSettings, TopicDefaults
from common.node_settings.transactions import TransactionSettings, VerificationSettings
from common.settings import Catalogue

NODE_SETTINGS = Catalogue(
    [
        NodeSettings,
        TlsSettings,
        AcceptSettings,
        *INERT_SETTINGS,
        SecuritySettings,
        ConnectionSettings,
        QuotaSettings,
        ControllerQuotaSettings,
        TopicDefaults,
        BrokerLogSettings,
        ReplicationSettings,
        ControllerSettings,
        HealthSettings,
        GroupSettings,
        TransactionSettings,
        VerificationSettings,
        TierSettings,
        TierStateSettings,
        AuditSettings,
        TierReads,
        TenantSettings,
        TelemetrySettings,
        MonitoringSettings,
        BalanceSettings,
        ShareSettings,
        PressureSettings,
        ProxySettings,
        ProxyLimitSettings,
    ]
)
