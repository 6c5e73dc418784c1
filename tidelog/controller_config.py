"""From settings, as an operator writes them, to the plain values that a controller is built with.

Apart from `node_config`, because a broker's process has no use for a controller's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.config import RequestLimits, server_limits
from common.broker_settings import NODE_SETTINGS
from common.settings import SettingError
from kraft.controller.driver import DriverConfig
from kraft.controller.leader_return import LeaderReturnConfig
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig
from kraft.controller.policy import AccessLimits, ControllerPolicy
from kraft.image.cells import BANDWIDTH_PER_BROKER, REPLICAS_PER_BROKER_MAX, TENANTS_MAX
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import DamagedSnapshot, decode_snapshot
from kraft.image.tenants import ACLS_MAX, CONNECTION_RATE, CONNECTIONS_MAX, KEYS_MAX, PARTITIONS_MAX
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.quorum import QuorumConfig
from tidelog.listener_config import parse_listeners
from tidelog.node_config import connections_per_ip, fill, given_defaults, node_values, parse_voters, read_secret
from wire.listeners import ListenerConfig, ListenerKind

HEARTBEAT_INTERVAL_MAX_S = 0.1  # of a leader of controllers


def controller_config(given: Mapping[str, str]) -> ControllerConfig:
    """SettingError names what is missing or wrong."""
    values = node_values(given, "controller")
    internal = parse_voters(values["controller.quorum.voters"], "controller.quorum.voters")
    quorum = parse_voters(values["tidelog.quorum.voters"], "tidelog.quorum.voters")
    if set(internal) != set(quorum):
        raise SettingError("tidelog.quorum.voters: it must name the same ids as controller.quorum.voters")
    if values["node.id"] not in quorum:
        raise SettingError(f"node.id: {values['node.id']} is not valid, it must be one of controller.quorum.voters")
    internal_listen = next(listen for listen in parse_listeners(values) if listen.kind == "internal")
    limits = fill(RequestLimits, values, max_connections_per_ip_overrides=connections_per_ip(values))
    election_s = values["controller.quorum.election.timeout.ms"] / 1_000
    silence_s = values["controller.quorum.fetch.timeout.ms"] / 1_000
    if silence_s < election_s:
        raise SettingError(
            "controller.quorum.fetch.timeout.ms: it must not be less than controller.quorum.election.timeout.ms"
        )
    return ControllerConfig(
        node_id=values["node.id"],
        voters=quorum,
        listener=ListenerConfig(
            internal_listen.name,
            internal_listen.address,
            internal_listen.advertised,
            ListenerKind.INTERNAL,
            internal_listen.protocol,
        ),
        tls=internal_listen.tls,
        secret=read_secret(values),
        policy=_policy(given, values),
        driver=DriverConfig(rebuilt=_rebuilt(values["tidelog.metadata.rebuild.file"])),
        liveness=LivenessConfig(
            session_timeout_s=values["broker.session.timeout.ms"] / 1_000,
            suspicion_s=values["tidelog.broker.suspicion.ms"] / 1_000,
        ),
        leader_return=LeaderReturnConfig(
            enabled=values["auto.leader.rebalance.enable"],
            interval_s=float(values["leader.imbalance.check.interval.seconds"]),
        ),
        quorum=QuorumConfig(
            replace_voter=values["tidelog.controllers.replace.voter"],
            node=NodeConfig(
                election_timeout_min_s=election_s,
                election_timeout_max_s=silence_s,
                heartbeat_interval_s=min(election_s / 10, HEARTBEAT_INTERVAL_MAX_S),
                leader_fallback_timeout_s=silence_s,
                compaction_bytes_min=values["metadata.log.max.record.bytes.between.snapshots"],
            ),
        ),
        limits=server_limits(limits),
        tail_batches_max=values["tidelog.metadata.tail.batches.max"],
        tail_bytes_max=values["tidelog.metadata.tail.bytes.max"],
        request_bytes_max=limits.queued_max_request_bytes,
        reply_bytes_max=limits.reply_bytes_max,
    )


def _rebuilt(path: str) -> MetadataImage | None:
    """What the controllers of a rebuilt cluster begin with. A file that is missing is an error also where it would not
    be needed: an empty controller that began without it would make another cluster."""
    name = "tidelog.metadata.rebuild.file"
    if not path:
        return None
    try:
        return decode_snapshot(Path(path).read_bytes())
    except OSError as error:
        raise SettingError(f"{name}: {path}: {error.strerror}") from error
    except DamagedSnapshot as error:
        raise SettingError(f"{name}: {path}: {error}") from error


def _policy(given: Mapping[str, str], values: Mapping[str, Any]) -> ControllerPolicy:
    static = {name: NODE_SETTINGS[name].text(value) for name, value in given_defaults(given, values).items()}
    return ControllerPolicy(
        num_partitions=values["num.partitions"],
        default_replication_factor=values["default.replication.factor"],
        min_insync_replicas=values["min.insync.replicas"],
        group_replication_factor=values["offsets.topic.replication.factor"],
        unclean_leader_election=values["unclean.leader.election.enable"],
        delete_topic_enable=values["delete.topic.enable"],
        static=static,
        access=_access(values),
    )


def _access(values: Mapping[str, Any]) -> AccessLimits:
    return AccessLimits(
        acls_max=values["tidelog.acls.max"],
        users_max=values["tidelog.users.max"],
        tenants_max=values["tidelog.tenants.max"],
        tenant={
            PARTITIONS_MAX: values["tidelog.tenant.partitions.max"],
            CONNECTIONS_MAX: values["tidelog.tenant.connections.max"],
            CONNECTION_RATE: values["tidelog.tenant.connection.rate"],
            KEYS_MAX: values["tidelog.tenant.keys.max"],
            ACLS_MAX: values["tidelog.tenant.acls.max"],
        },
        cell={
            REPLICAS_PER_BROKER_MAX: values["tidelog.cell.replicas.per.broker.max"],
            TENANTS_MAX: values["tidelog.cell.tenants.max"],
            BANDWIDTH_PER_BROKER: values["tidelog.cell.bandwidth.per.broker"],
        },
        move_partitions_max=values["tidelog.tenant.move.partitions.max"],
        move_bytes_per_second=values["tidelog.tenant.move.bytes.per.second"],
    )
