"""Converts settings to the configuration of a controller.

Separate from `node_config`, because a broker's process does not need a controller's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from common.node_settings.balance import BalanceSettings
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.controllers import ControllerSettings
from common.node_settings.identity import NodeSettings
from common.node_settings.quotas import ControllerQuotaSettings
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.node_settings.topics import with_retention
from common.settings import SettingError, SettingValues
from kraft.controller.driver import DriverConfig
from kraft.controller.health_duties import HealthConfig
from kraft.controller.leader_return import LeaderReturnConfig
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import DamagedSnapshot, decode_snapshot
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.quorum import QuorumConfig
from tidelog.configuration.listener_config import parse_listeners
from tidelog.configuration.node_config import VOTERS, node_values, parse_voters, read_secret, server_limits
from wire.listeners import ListenerConfig, ListenerKind

HEARTBEAT_INTERVAL_MAX_S = 0.1  # of a quorum leader


def controller_config(given: Mapping[str, str]) -> ControllerConfig:
    """SettingError names missing or invalid settings."""
    values = node_values(given, "controller")
    node, settings = values.group(NodeSettings), values.group(ControllerSettings)
    internal = parse_voters(node.controller_quorum_voters, VOTERS)
    quorum = parse_voters(node.quorum_voters, "tidelog.quorum.voters")
    if set(internal) != set(quorum):
        raise SettingError("tidelog.quorum.voters: it must name the same ids as controller.quorum.voters")
    if node.node_id not in quorum:
        raise SettingError(f"node.id: {node.node_id} is not valid, it must be one of controller.quorum.voters")
    internal_listen = next(listen for listen in parse_listeners(values) if listen.kind == "internal")
    if settings.controller_quorum_fetch_timeout_ms < settings.controller_quorum_election_timeout_ms:
        raise SettingError(
            "controller.quorum.fetch.timeout.ms: it must not be less than controller.quorum.election.timeout.ms"
        )
    times = values.group(NodeConfig)
    times.heartbeat_interval_s = min(times.election_timeout_min_s / 10, HEARTBEAT_INTERVAL_MAX_S)
    return ControllerConfig(
        node_id=node.node_id,
        voters=quorum,
        listener=ListenerConfig(
            internal_listen.name,
            internal_listen.address,
            internal_listen.advertised,
            ListenerKind.INTERNAL,
            internal_listen.protocol,
        ),
        tls=internal_listen.tls,
        secret=read_secret(node.cluster_secret_file),
        policy=_policy(values),
        driver=DriverConfig(rebuilt=_rebuilt(settings.metadata_rebuild_file)),
        liveness=values.group(LivenessConfig),
        leader_return=values.group(LeaderReturnConfig),
        health=values.group(HealthConfig),
        quorum=replace(values.group(QuorumConfig), node=times),
        limits=server_limits(values),
        shares=values.group(ShareSettings),
        usage_report_interval_s=settings.usage_report_interval_ms / 1000,
        tail_batches_max=settings.metadata_tail_batches_max,
        tail_bytes_max=settings.metadata_tail_bytes_max,
    )


def _rebuilt(path: str) -> MetadataImage | None:
    """The initial metadata of the controllers of a rebuilt cluster. A missing file is always an error: an empty
    controller that started without it would create another cluster."""
    name = "tidelog.metadata.rebuild.file"
    if not path:
        return None
    try:
        return decode_snapshot(Path(path).read_bytes())
    except OSError as error:
        raise SettingError(f"{name}: {path}: {error.strerror}") from error
    except DamagedSnapshot as error:
        raise SettingError(f"{name}: {path}: {error}") from error


def _policy(values: SettingValues) -> ControllerPolicy:
    static = {name: NODE_SETTINGS[name].text(value) for name, value in with_retention(values.given).items()}
    return replace(
        values.group(ControllerPolicy),
        static=static,
        access=values.group(TenantSettings),
        quotas=values.group(ControllerQuotaSettings),
        balance=values.group(BalanceSettings),
    )
