"""Creates the handlers of one broker with their dependencies. `broker.apis` assigns their methods to APIs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.audit.plane import AuditPlane
from broker.config import BrokerConfig
from broker.coordinators import Coordinators
from broker.data_plane import DataPlane
from broker.gates.offset_gates import OffsetGates
from broker.gates.topic_gates import TopicDeletion
from broker.handlers.acls import AclHandlers
from broker.handlers.certificate_reloads import CertificateReloads
from broker.handlers.client_quotas import ClientQuotaHandlers
from broker.handlers.cluster import ClusterHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.delegation_tokens import DelegationTokens
from broker.handlers.elections import ElectLeaders
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.internal import AppendAudit, ImportKeys, TierStateHandler
from broker.handlers.list_offsets import ListOffsets
from broker.handlers.log_dirs import AlterReplicaLogDirs, DescribeLogDirs
from broker.handlers.log_offsets import DeleteRecords, OffsetForLeaderEpoch
from broker.handlers.logger_levels import LoggerLevels
from broker.handlers.metadata import MetadataConfig, MetadataHandler
from broker.handlers.producers import DescribeProducers
from broker.handlers.quorum import DescribeQuorum
from broker.handlers.sasl import SaslHandlers
from broker.handlers.scram import ScramHandlers
from broker.handlers.tenants import TenantHandlers
from broker.handlers.tier_description import TierDescriptions
from broker.handlers.topic_rows import TopicRows
from broker.handlers.topics import TopicHandlers
from broker.membership import Membership
from broker.replication.cold_reading import ColdReading
from broker.requests.forwarding import Forwarder
from broker.tier.plane import TierPlane
from common.node_settings.catalogue import NODE_SETTINGS
from common.ports import Ports
from wire.tls import TlsContexts


def handlers(
    *,
    config: BrokerConfig,
    ports: Ports,
    data_plane: DataPlane,
    coordinators: Coordinators,
    forwarder: Forwarder,
    audit: AuditPlane,
    tier: Callable[[], TierPlane | None],
    cold: Callable[[], ColdReading | None],
    remote_list_offsets_ms: Callable[[], int],
    tls_contexts: Callable[[], Sequence[TlsContexts]],
    membership: Membership,
) -> list[object]:
    """`tier` and `cold` return None until the broker has them, without an object store always."""
    partitions = data_plane.partitions
    return [
        forwarder,
        SaslHandlers(),
        TopicDeletion(lambda: forwarder.image),
        OffsetGates(lambda: forwarder.image),
        ListOffsets(
            hosted=partitions, cold=lambda: data_plane.fetch.reader.cold, remote_timeout_ms=remote_list_offsets_ms
        ),
        MetadataHandler(
            forwarder=forwarder,
            internal_topics=coordinators.internal_topics,
            config=MetadataConfig(config.node_id, config.topics.auto_create_topics_enable),
            is_doubted=data_plane.fetchers.is_doubted,
            is_lost=membership.lost.is_recent,
            rows=TopicRows(config.limits.connection.metadata_cache_bytes_max),
        ),
        GroupOffsetHandlers(coordinators.groups, lambda: partitions.image),
        ClusterHandlers(forwarder, coordinators.internal_topics, config.node_id, membership.network.greeted),
        GroupHandlers(coordinators.groups),
        TopicHandlers(forwarder, config.node_id),
        DeleteRecords(partitions),
        *coordinators.transactions.handlers(coordinators.groups, coordinators.internal_topics),
        OffsetForLeaderEpoch(partitions),
        _config_handlers(config, forwarder, tls_contexts),
        DescribeLogDirs(hosted=partitions, disk=ports.disk, directory=config.log_dirs),
        AlterReplicaLogDirs(hosted=partitions, directory=config.log_dirs),
        DelegationTokens(),
        DescribeProducers(partitions),
        ElectLeaders(forwarder),
        DescribeQuorum(forwarder),
        TierStateHandler(coordinators.tiers),
        TierDescriptions(
            node_id=config.node_id,
            plane=tier,
            client=coordinators.tier_client,
            coordinator=coordinators.tiers,
            forwarder=forwarder,
            clock=ports.clock,
            cold=cold,
        ),
        AppendAudit(audit.host),
        AclHandlers(forwarder, authorizes=config.security.authorizer is not None),
        ScramHandlers(forwarder),
        ClientQuotaHandlers(forwarder),
        TenantHandlers(forwarder),
        ImportKeys(coordinators.keys, lambda: partitions.image),
    ]


def _config_handlers(
    config: BrokerConfig, forwarder: Forwarder, tls_contexts: Callable[[], Sequence[TlsContexts]]
) -> ConfigHandlers:
    return ConfigHandlers(
        forwarder=forwarder,
        node_id=config.node_id,
        given={name: NODE_SETTINGS[name].text(value) for name, value in config.node_settings.items()},
        certificates=CertificateReloads(config.node_id, tls_contexts),
        loggers=LoggerLevels(config.node_id, logging.root.manager),
    )
