"""Converts settings to the configuration of a broker, and the common part of all nodes' configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.coordination.transactions.config import TransactionConfig
from broker.partitions.config import LogDuties
from broker.replication.config import ReplicationConfig
from broker.tier.config import TierConfig
from common.host_names import is_domain
from common.node_settings.connections import ConnectionSettings
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
from common.node_settings.tier import TierReads, TierSettings, TierStateSettings
from common.node_settings.topics import TopicDefaults, with_retention
from common.node_settings.transactions import VerificationSettings
from common.ports import Address
from common.settings import SettingError, SettingValues
from kraft.image.cells import CELL_NAME
from tidelog.configuration.listener_config import host_and_port, parse_listeners
from tidelog.configuration.security_config import security_config
from tidelog.configuration.settings_check import check_own_of_listeners, check_settings
from wire.server import ServerLimits

VOTERS = "controller.quorum.voters"
SECRET_BYTES_MIN = 16


def broker_config(given: Mapping[str, str]) -> BrokerConfig:
    """SettingError names missing or invalid settings."""
    values = node_values(given, "broker")
    node, proxy = values.group(NodeSettings), values.group(ProxySettings)
    voters = parse_voters(node.controller_quorum_voters, VOTERS)
    listeners = parse_listeners(values)
    check_own_of_listeners(values.given, [listen.name for listen in listeners])
    if not any(listen.kind != "internal" for listen in listeners):
        raise SettingError("listeners: a broker needs a listener for clients beside the internal one")
    return BrokerConfig(
        node_id=node.node_id,
        listeners=listeners,
        controllers=voters,
        secret=read_secret(node.cluster_secret_file),
        rack=node.rack,
        cell=_cell(values.group(TenantSettings).cell),
        log_dirs=node.log_dirs,
        sessions=values.group(ControllerSettings),
        health=values.group(HealthSettings),
        topics=values.group(TopicDefaults),
        quotas=values.group(QuotaSettings),
        shares=values.group(ShareSettings),
        pressure=values.group(PressureSettings),
        tenants=values.group(TenantSettings),
        monitoring=values.group(MonitoringSettings),
        telemetry=values.group(TelemetrySettings),
        replication=values.group(ReplicationConfig),
        limits=server_limits(values),
        duties=values.group(LogDuties),
        groups=values.group(GroupConfig),
        transactions=values.group(TransactionConfig),
        verification=values.group(VerificationSettings),
        tier=values.group(TierConfig),
        tier_state=values.group(TierStateSettings),
        tier_reads=values.group(TierReads),
        audit=values.group(AuditConfig),
        security=security_config(values, [listen.name for listen in listeners], _domain(proxy.domain)),
        proxy_domain=_domain(proxy.domain),
        proxy_port=proxy.advertised_port or proxy.port,
        node_settings=with_retention(values.given),
    )


def server_limits(values: SettingValues) -> ServerLimits:
    """The limits of a node's listeners, for brokers and controllers."""
    return replace(values.group(ServerLimits), connection=values.group(ConnectionSettings))


def _cell(name: str) -> str:
    if not CELL_NAME.fullmatch(name):
        raise SettingError(
            f"tidelog.cell: {name!r} is not valid, it must be 1 to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def _domain(given: str) -> str:
    name = given.lower()
    if name and not is_domain(name):
        raise SettingError(f"tidelog.proxy.domain: {name!r} is not a domain that tenants' names can be made below")
    return name


def data_directory(values: SettingValues) -> Path:
    return Path(values.group(NodeSettings).log_dirs)


def node_values(given: Mapping[str, str], role: str) -> SettingValues:
    """The settings of a node of this role. SettingError names missing or invalid ones."""
    values = check_settings(given)
    node, tier = values.group(NodeSettings), values.group(TierSettings)
    if node.node_id < 0:
        raise SettingError("node.id: it must be set to at least 0")
    if node.process_roles not in ((), (role,)):
        raise SettingError(f"process.roles: this node runs as {role}, so it must be {role}")
    if "," in node.log_dirs:
        raise SettingError("log.dirs: it must name one directory")
    host_and_port(node.metrics_listener, "tidelog.metrics.listener")
    if tier.enable and not tier.uri:
        raise SettingError("tidelog.tier.enable: true is not valid without tidelog.tier.uri, the tier's object store")
    if tier.spark_schedule.strip() and not tier.uri:
        raise SettingError("tidelog.spark.schedule: it is not valid without tidelog.tier.uri, which its jobs work on")
    return values


def read_secret(path: str) -> bytes:
    """The cluster secret in that file; it appears in no error."""
    name = "tidelog.cluster.secret.file"
    if not path:
        raise SettingError(f"{name}: it must name the file with the cluster's secret")
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise SettingError(f"{name}: {path}: {error.strerror}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingError(f"{name}: {path} must hold at least {SECRET_BYTES_MIN} bytes")
    return secret


def parse_voters(texts: tuple[str, ...], setting: str) -> dict[int, Address]:
    voters: dict[int, Address] = {}
    for text in texts:
        node, separator, address = text.partition("@")
        if not separator or not node.isdigit():
            raise SettingError(f"{setting}: {text!r} is not valid, it must be id@host:port")
        if int(node) in voters:
            raise SettingError(f"{setting}: {node} is named twice")
        voters[int(node)] = host_and_port(address, setting)
    if not voters:
        raise SettingError(f"{setting}: it must name every voter as id@host:port")
    return voters
