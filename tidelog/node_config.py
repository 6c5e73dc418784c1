"""From settings, as an operator writes them, to the plain values that a broker is built with, and what nodes of both
roles have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig, LogDuties, ReplicationConfig, RequestLimits, TierReads
from broker.tier.config import TierConfig
from common.broker_settings import NODE_SETTINGS
from common.host_names import is_domain
from common.ports import Address
from common.settings import SettingError
from common.topic_settings import TOPIC_SETTINGS
from kraft.image.cells import CELL_NAME
from tidelog.listener_config import host_and_port, parse_listeners
from tidelog.security_config import security_config
from tidelog.settings_check import check_own_of_listeners, check_settings
from wire.listeners import counts_by_address

SECRET_BYTES_MIN = 16
T = TypeVar("T")


def broker_config(given: Mapping[str, str]) -> BrokerConfig:
    """SettingError names what is missing or wrong."""
    values = node_values(given, "broker")
    voters = parse_voters(values["controller.quorum.voters"], "controller.quorum.voters")
    listeners = parse_listeners(values)
    check_own_of_listeners(values, [listen.name for listen in listeners])
    if not any(listen.kind != "internal" for listen in listeners):
        raise SettingError("listeners: a broker needs a listener for clients beside the internal one")
    return BrokerConfig(
        node_id=values["node.id"],
        listeners=listeners,
        controllers=voters,
        secret=read_secret(values),
        rack=values["broker.rack"],
        cell=_cell(values["tidelog.cell"]),
        broker_session_timeout_ms=values["broker.session.timeout.ms"],
        broker_heartbeat_interval_ms=values["broker.heartbeat.interval.ms"],
        controlled_shutdown_enable=values["controlled.shutdown.enable"],
        controlled_shutdown_timeout_ms=values["tidelog.controlled.shutdown.timeout.ms"],
        auto_create_topics_enable=values["auto.create.topics.enable"],
        num_partitions=values["num.partitions"],
        default_replication_factor=values["default.replication.factor"],
        replication=fill(ReplicationConfig, values, rack_aware_reads="Rack" in values["replica.selector.class"]),
        limits=fill(RequestLimits, values, max_connections_per_ip_overrides=connections_per_ip(values)),
        duties=fill(LogDuties, values),
        tier_reads=fill(TierReads, values),
        tier=_tier(values),
        audit=_audit(values),
        security=security_config(
            values, [listen.name for listen in listeners], _domain(values["tidelog.proxy.domain"])
        ),
        proxy_domain=_domain(values["tidelog.proxy.domain"]),
        proxy_port=values["tidelog.proxy.advertised.port"] or values["tidelog.proxy.port"],
        node_settings=given_defaults(given, values),
    )


def _tier(values: Mapping[str, Any]) -> TierConfig:
    return TierConfig(
        uri=values["tidelog.tier.uri"],
        interval_ms=values["tidelog.tier.interval.ms"],
        copies_max=values["tidelog.tier.copy.threads"],
        copy_bytes_per_second=values["tidelog.tier.copy.bytes.per.second"],
        delete_delay_ms=values["tidelog.tier.delete.delay.ms"],
        manifest_keep_ms=values["tidelog.tier.manifest.keep.ms"],
        proposals_interval_ms=values["tidelog.tier.proposals.interval.ms"],
        erase_grace_ms=values["tidelog.tier.erase.grace.ms"],
        sweep_interval_ms=values["tidelog.tier.sweep.interval.ms"],
        sweep_age_ms=values["tidelog.tier.sweep.age.ms"],
        export_interval_ms=values["tidelog.tier.export.interval.ms"],
        retention_interval_ms=values["log.retention.check.interval.ms"],
    )


def _audit(values: Mapping[str, Any]) -> AuditConfig:
    return AuditConfig(
        journal_max_bytes=values["tidelog.audit.journal.max.bytes"],
        export_retention_ms=values["tidelog.audit.export.retention.ms"],
    )


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


def data_directory(values: Mapping[str, Any]) -> Path:
    return Path(values["log.dirs"])


def node_values(given: Mapping[str, str], role: str) -> dict[str, Any]:
    """Every setting of a node of this role. SettingError names what is missing or wrong."""
    values = check_settings(given)
    if values["node.id"] < 0:
        raise SettingError("node.id: it must be set to at least 0")
    if values["process.roles"] not in ((), (role,)):
        raise SettingError(f"process.roles: this node runs as {role}, so it must be {role}")
    if "," in values["log.dirs"]:
        raise SettingError("log.dirs: it must name one directory")
    host_and_port(values["tidelog.metrics.listener"], "tidelog.metrics.listener")
    if values["tidelog.tier.enable"] and not values["tidelog.tier.uri"]:
        raise SettingError("tidelog.tier.enable: true is not valid without tidelog.tier.uri, the tier's object store")
    if values["tidelog.spark.schedule"].strip() and not values["tidelog.tier.uri"]:
        raise SettingError("tidelog.spark.schedule: it is not valid without tidelog.tier.uri, which its jobs work on")
    return values


def given_defaults(given: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, object]:
    """The node settings that were set, which is what topic settings take their defaults from."""
    shown: dict[str, object] = {name: values[name] for name in given}
    for name, unit_ms in (("log.retention.hours", 3_600_000), ("log.retention.minutes", 60_000)):
        if values[name] != -1 and "log.retention.ms" not in given:  # minutes, read last, override hours
            shown["log.retention.ms"] = values[name] * unit_ms
    synonyms = {synonym for setting in TOPIC_SETTINGS for synonym in setting.synonyms}
    return {name: value for name, value in shown.items() if name in synonyms or name in NODE_SETTINGS}


def fill(kind: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """A config value whose fields are named like settings, with dots as underscores and without `tidelog.`."""
    named = {name.removeprefix("tidelog.").replace(".", "_"): value for name, value in values.items()}
    named |= {name.removeprefix("log_"): value for name, value in named.items() if name.startswith("log_")}
    found = {field.name: named[field.name] for field in fields(kind) if field.name in named}  # type: ignore[arg-type]
    return kind(**(found | given))


def connections_per_ip(values: Mapping[str, Any]) -> dict[str, int]:
    """`max.connections.per.ip.overrides`."""
    name = "max.connections.per.ip.overrides"
    try:
        return counts_by_address(values[name])
    except ValueError as error:
        raise SettingError(f"{name}: {str(error)!r} is not valid, it must be ADDRESS:COUNT") from None


def read_secret(values: Mapping[str, Any]) -> bytes:
    """The cluster secret; it appears in no error."""
    name = "tidelog.cluster.secret.file"
    path = values[name]
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
