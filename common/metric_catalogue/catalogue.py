"""Every metric that a node shows. `/metrics`, docs/metrics.md and the tests of boards and alarms derive from it."""

from common.metric_catalogue.brokers import CLIENT_METRICS, CLIENTS, CONNECTIONS, LOAD, REQUESTS
from common.metric_catalogue.controllers import BALANCE, CLUSTER, EXPORTS, HEALTH, QUORUM
from common.metric_catalogue.nodes import NODES, PROXIES
from common.metric_catalogue.replicas import LOGS, PARTITIONS, TRANSACTIONS
from common.metric_catalogue.tenants import GROUPS, TENANTS
from common.metric_catalogue.tiers import COPIES, READS

AREAS = (
    CLUSTER,
    QUORUM,
    HEALTH,
    BALANCE,
    REQUESTS,
    LOAD,
    CONNECTIONS,
    CLIENTS,
    PARTITIONS,
    TRANSACTIONS,
    LOGS,
    GROUPS,
    TENANTS,
    COPIES,
    READS,
    EXPORTS,
    NODES,
    PROXIES,
    CLIENT_METRICS,
)
METRICS = {metric.name: metric for area in AREAS for metric in area.metrics}
