"""From settings, as an operator writes them, to the plain values that a proxy is built with."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from common.host_names import is_domain
from common.settings import SettingError
from proxy.certificates import CertificateProblem, ChainFiles, broker_context, server_context
from proxy.config import ProxyConfig
from proxy.limits import ProxyLimits
from proxy.networks import NetworkRules, Networks
from tidelog.listener_config import host_and_port, links_tls
from tidelog.node_config import node_values, parse_voters, read_secret

logger = logging.getLogger(__name__)

OWN_FILES = 64  # a worker's own: the loop, the listener, logs, look-ups of names
FILES_PER_CONNECTION = 2
CONNECTIONS_MIN = 64


def proxy_config(given: Mapping[str, str]) -> ProxyConfig:
    """SettingError names what is missing or wrong."""
    values = node_values(given, "proxy")
    domain = values["tidelog.proxy.domain"].lower()
    if not is_domain(domain):
        raise SettingError(f"tidelog.proxy.domain: {domain!r} is not valid, it must be a domain like kafka.example.org")
    terminates = values["tidelog.proxy.mode"] == "terminate"
    certificate = _chain(values) if terminates else None
    to_broker = None
    if terminates and values["tidelog.proxy.broker.certificate.file"]:
        to_broker = ChainFiles(values["tidelog.proxy.broker.certificate.file"])
        if not values["tidelog.proxy.broker.ca.file"]:
            raise SettingError(
                "tidelog.proxy.broker.ca.file: it must name the authority of the brokers' certificates, because "
                "tidelog.proxy.broker.certificate.file is set"
            )
    workers = values["tidelog.proxy.workers"] or len(os.sched_getaffinity(0))
    config = ProxyConfig(
        node_id=values["node.id"],
        listen=(values["tidelog.proxy.host"].strip("[]"), values["tidelog.proxy.port"]),
        workers=workers,
        domain=domain,
        certificate=certificate,
        broker_listener=values["tidelog.proxy.broker.listener"],
        broker_certificate=to_broker,
        broker_authority=values["tidelog.proxy.broker.ca.file"],
        controllers=parse_voters(values["controller.quorum.voters"], "controller.quorum.voters"),
        secret=read_secret(values),
        links_tls=links_tls(values),
        header=terminates or values["tidelog.proxy.passthrough.header"],
        check_hostname=values["tidelog.proxy.broker.check.hostname"],
        certificate_check_s=values["tidelog.proxy.certificate.check.ms"] / 1000,
        certificate_warn_days=values["tidelog.proxy.certificate.warn.days"],
        limits=_limits(values, workers),
        rules=NetworkRules(
            _networks(values, "tidelog.proxy.allow.networks"), _networks(values, "tidelog.proxy.deny.networks")
        ),
        metrics=host_and_port(values["tidelog.metrics.listener"], "tidelog.metrics.listener"),
    )
    _check_certificates(config)
    return config


def within_descriptors(config: ProxyConfig, limit: int) -> ProxyConfig:
    """`config` with as many connections as `limit` open files allow each worker. SettingError when that is too few."""
    room = (limit - OWN_FILES - config.limits.opening) // FILES_PER_CONNECTION
    if room < CONNECTIONS_MIN:
        raise SettingError(
            f"open files: the system allows {limit} (ulimit -n), a worker of a proxy needs at least "
            f"{OWN_FILES + config.limits.opening + FILES_PER_CONNECTION * CONNECTIONS_MIN}"
        )
    if room >= config.limits.connections:
        return config
    logger.warning(
        "fewer connections than tidelog.proxy.connections.max, because of the limit of open files (ulimit -n)",
        extra={"connections": room, "asked_for": config.limits.connections, "open_files": limit},
    )
    return replace(config, limits=replace(config.limits, connections=room))


def _chain(values: Mapping[str, Any]) -> ChainFiles:
    name = "tidelog.proxy.certificate.file"
    if not values[name]:
        raise SettingError(f"{name}: it must name the certificate for *.<domain>, or tidelog.proxy.mode=passthrough")
    return ChainFiles(values[name], values["tidelog.proxy.certificate.key.file"])


def _limits(values: Mapping[str, Any], workers: int) -> ProxyLimits:
    def seconds(name: str) -> float:
        return float(values[name]) / 1000

    return ProxyLimits(
        connections=values["tidelog.proxy.connections.max"],
        opening=values["tidelog.proxy.opening.max"],
        quick=values["tidelog.proxy.quick.connections.max"],
        new_per_second=values["tidelog.proxy.connection.rate"],
        new_burst=values["tidelog.proxy.connection.burst"],
        address_connections=values["tidelog.proxy.connections.per.address.max"],
        address_new_per_second=values["tidelog.proxy.connection.rate.per.address"],
        tenant_connections=values["tidelog.tenant.connections.max"],
        tenant_new_per_second=float(values["tidelog.tenant.connection.rate"]),
        opening_timeout_s=seconds("tidelog.proxy.opening.timeout.ms"),
        connect_timeout_s=seconds("tidelog.proxy.connect.timeout.ms"),
        idle_s=seconds("tidelog.proxy.idle.ms"),
        half_closed_s=seconds("tidelog.proxy.half.closed.ms"),
        hello_bytes=values["tidelog.proxy.hello.bytes.max"],
        drain_s=seconds("tidelog.proxy.drain.ms"),
        workers=workers,
    )


def _networks(values: Mapping[str, Any], name: str) -> Networks:
    try:
        return Networks(values[name])
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error


def _check_certificates(config: ProxyConfig) -> None:
    """Before anything runs, so that the operator is told and not a worker's log."""
    try:
        if config.certificate is not None:
            server_context(config.certificate)
        if config.broker_certificate is not None:
            broker_context(config.broker_certificate, config.broker_authority)
    except CertificateProblem as problem:
        raise SettingError(f"certificates: {problem}") from problem
