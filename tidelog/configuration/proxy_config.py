"""Converts settings to the configuration of a proxy."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from common.host_names import is_domain
from common.node_settings.identity import NodeSettings
from common.node_settings.proxy import ProxySettings
from common.settings import SettingError
from proxy.certificates import CertificateProblem, ChainFiles, broker_context, server_context
from proxy.config import ProxyConfig
from proxy.limits import ProxyLimits
from proxy.networks import NetworkRules, Networks
from tidelog.configuration.listener_config import host_and_port, links_tls
from tidelog.configuration.node_config import VOTERS, node_values, parse_voters, read_secret

logger = logging.getLogger(__name__)

OWN_FILES = 64  # a worker's own: the loop, the listener, logs, look-ups of names
FILES_PER_CONNECTION = 2
CONNECTIONS_MIN = 64


def proxy_config(given: Mapping[str, str]) -> ProxyConfig:
    """SettingError names missing or invalid settings."""
    values = node_values(given, "proxy")
    node, proxy = values.group(NodeSettings), values.group(ProxySettings)
    domain = proxy.domain.lower()
    if not is_domain(domain):
        raise SettingError(f"tidelog.proxy.domain: {domain!r} is not valid, it must be a domain like kafka.example.org")
    terminates = proxy.mode == "terminate"
    certificate = _chain(proxy) if terminates else None
    to_broker = None
    if terminates and proxy.broker_certificate_file:
        to_broker = ChainFiles(proxy.broker_certificate_file)
        if not proxy.broker_ca_file:
            raise SettingError(
                "tidelog.proxy.broker.ca.file: it must name the authority of the brokers' certificates, because "
                "tidelog.proxy.broker.certificate.file is set"
            )
    workers = proxy.workers or len(os.sched_getaffinity(0))
    config = ProxyConfig(
        node_id=node.node_id,
        listen=(proxy.host.strip("[]"), proxy.port),
        workers=workers,
        domain=domain,
        certificate=certificate,
        broker_listener=proxy.broker_listener,
        broker_certificate=to_broker,
        broker_authority=proxy.broker_ca_file,
        controllers=parse_voters(node.controller_quorum_voters, VOTERS),
        secret=read_secret(node.cluster_secret_file),
        links_tls=links_tls(values),
        header=terminates or proxy.passthrough_header,
        check_hostname=proxy.check_hostname,
        certificate_check_s=proxy.certificate_check_s,
        certificate_warn_days=proxy.certificate_warn_days,
        limits=replace(values.group(ProxyLimits), workers=workers),
        rules=NetworkRules(
            _networks(proxy.allow_networks, "tidelog.proxy.allow.networks"),
            _networks(proxy.deny_networks, "tidelog.proxy.deny.networks"),
        ),
        metrics=host_and_port(node.metrics_listener, "tidelog.metrics.listener"),
    )
    _check_certificates(config)
    return config


def within_descriptors(config: ProxyConfig, limit: int) -> ProxyConfig:
    """`config` with as many connections as `limit` open files allow each worker. SettingError if that is too few."""
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


def _chain(proxy: ProxySettings) -> ChainFiles:
    if not proxy.certificate_file:
        raise SettingError(
            "tidelog.proxy.certificate.file: it must name the certificate for *.<domain>, or "
            "tidelog.proxy.mode=passthrough"
        )
    return ChainFiles(proxy.certificate_file, proxy.certificate_key_file)


def _networks(texts: tuple[str, ...], name: str) -> Networks:
    try:
        return Networks(texts)
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error


def _check_certificates(config: ProxyConfig) -> None:
    """Check before anything runs, so that the operator sees the error instead of a worker's log."""
    try:
        if config.certificate is not None:
            server_context(config.certificate)
        if config.broker_certificate is not None:
            broker_context(config.broker_certificate, config.broker_authority)
    except CertificateProblem as problem:
        raise SettingError(f"certificates: {problem}") from problem
