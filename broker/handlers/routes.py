"""The whole surface of a broker on one screen: which handler answers which API.

Versions and listeners are in `wire.apis`. Produce (0) and Fetch (1) are not here: they take the hand-packed way.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.handlers.acls import AclHandlers
from broker.handlers.audit import AppendAudit
from broker.handlers.cells import CellHandlers
from broker.handlers.cluster import ClusterHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.key_imports import ImportKeys
from broker.handlers.list_offsets import ListOffsets
from broker.handlers.log_dirs import DescribeLogDirs
from broker.handlers.log_offsets import DeleteRecords, OffsetForLeaderEpoch
from broker.handlers.metadata import MetadataHandler
from broker.handlers.producers import DescribeProducers, InitProducerId
from broker.handlers.reassignments import ReassignmentHandlers
from broker.handlers.scram import ScramHandlers
from broker.handlers.tenants import TenantHandlers
from broker.handlers.tier_description import TierDescriptions
from broker.handlers.tier_state import TierStateHandler
from broker.handlers.topics import TopicHandlers
from broker.request import Handler
from broker.security.plane import Security


@dataclass(slots=True, frozen=True)
class Handlers:
    """Every handler family outside the hot path."""

    list_offsets: ListOffsets
    metadata: MetadataHandler
    offsets: GroupOffsetHandlers
    cluster: ClusterHandlers
    groups: GroupHandlers
    topics: TopicHandlers
    delete_records: DeleteRecords
    init_producer_id: InitProducerId
    leader_epochs: OffsetForLeaderEpoch
    configs: ConfigHandlers
    log_dirs: DescribeLogDirs
    producers: DescribeProducers
    reassignments: ReassignmentHandlers
    tier_state: TierStateHandler
    tier: TierDescriptions
    audit: AppendAudit
    acls: AclHandlers
    scram: ScramHandlers
    tenants: TenantHandlers
    cells: CellHandlers
    key_imports: ImportKeys
    security: Security


def routes(of: Handlers) -> dict[int, Handler]:
    """By API key."""
    return {
        2: of.list_offsets.handle,
        3: of.metadata.metadata,
        8: of.offsets.offset_commit,
        9: of.offsets.offset_fetch,
        10: of.cluster.find_coordinator,
        11: of.groups.join_group,
        12: of.groups.heartbeat,
        13: of.groups.leave_group,
        14: of.groups.sync_group,
        15: of.groups.describe_groups,
        16: of.groups.list_groups,
        17: of.security.handshake,
        18: of.cluster.api_versions,
        19: of.topics.create_topics,
        20: of.topics.delete_topics,
        21: of.delete_records.handle,
        22: of.init_producer_id.handle,
        23: of.leader_epochs.handle,
        29: of.acls.describe_acls,
        30: of.acls.create_acls,
        31: of.acls.delete_acls,
        32: of.configs.describe_configs,
        33: of.configs.alter_configs,
        35: of.log_dirs.handle,
        36: of.security.authenticate,
        37: of.topics.create_partitions,
        42: of.groups.delete_groups,
        43: of.reassignments.elect_leaders,
        44: of.configs.incremental_alter_configs,
        45: of.reassignments.alter_partition_reassignments,
        46: of.reassignments.list_partition_reassignments,
        47: of.offsets.offset_delete,
        50: of.scram.describe_user_scram_credentials,
        51: of.scram.alter_user_scram_credentials,
        57: of.cluster.update_features,
        60: of.cluster.describe_cluster,
        61: of.producers.handle,
        64: of.cluster.unregister_broker,
        75: of.topics.describe_topic_partitions,
        10000: of.tier_state.handle,
        10001: of.tier.describe_tier,
        10002: of.tier.restore_topic,
        10003: of.audit.handle,
        10004: of.tenants.create_tenant,
        10005: of.tenants.describe_tenants,
        10006: of.tenants.alter_tenant,
        10007: of.tenants.delete_tenant,
        10008: of.tenants.move_tenant,
        10009: of.tenants.create_api_key,
        10010: of.tenants.delete_api_key,
        10011: of.tenants.describe_api_keys,
        10012: of.cells.describe_cells,
        10013: of.cells.alter_cell,
        10016: of.key_imports.handle,
    }
