"""Checks whether an operator's settings are consistent; imports no code of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.connections import ConnectionSettings
from common.node_settings.controllers import ControllerSettings
from common.node_settings.groups import GroupSettings
from common.node_settings.monitoring import MonitoringSettings
from common.node_settings.replication import ReplicationSettings
from common.node_settings.tier import TierSettings
from common.node_settings.topics import BrokerLogSettings, with_retention
from common.settings import SettingError, SettingValues, listener_of
from common.web_document import fault_of
from tidelog.configuration.job_schedule import ScheduleError, parse_schedule


def check_settings(given: Mapping[str, str]) -> SettingValues:
    """All values. Raises SettingError if one is unknown or out of range, or if two contradict each other."""
    values = NODE_SETTINGS.values(given)
    _check_contradictions(values)
    _check_tracing(values.group(MonitoringSettings))
    tier = values.group(TierSettings)
    if tier.uri:
        _check_tier_uri(tier.uri)
        logs = SettingValues(with_retention(values.given)).group(BrokerLogSettings)
        _check_sweep_age(tier, logs)
        _check_local_retention(logs)
    _check_schedule(tier)
    return values


def check_own_of_listeners(names: Iterable[str], listeners: Iterable[str]) -> None:
    """SettingError if one of the settings `names` belongs to a listener that does not exist."""
    there = list(listeners)
    known = {listener.lower() for listener in there}
    for name in names:
        listener = listener_of(name)
        if listener is not None and listener not in known:
            raise SettingError(f"{name}: there is no listener {listener}, there are {', '.join(there)}")


def _check_tracing(settings: MonitoringSettings) -> None:
    if settings.tracing_endpoint and (fault := fault_of(settings.tracing_endpoint)):
        raise SettingError(f"tidelog.tracing.endpoint: {fault}")


def _check_contradictions(values: SettingValues) -> None:
    for low, high in _ordered_pairs(values):
        if low[1] > high[1]:
            raise SettingError(f"{low[0]}: {low[1]} is not valid, it must be at most {high[0]} ({high[1]})")
    sessions, connection = values.group(ControllerSettings), values.group(ConnectionSettings)
    if sessions.broker_heartbeat_interval_ms * 2 > sessions.broker_session_timeout_ms:
        raise SettingError(
            f"broker.heartbeat.interval.ms: {sessions.broker_heartbeat_interval_ms} is not valid, it must be at most "
            f"half of broker.session.timeout.ms ({sessions.broker_session_timeout_ms})"
        )
    if connection.frame_bytes_max > connection.held_bytes_max:
        raise SettingError(
            f"socket.request.max.bytes: {connection.frame_bytes_max} is not valid, it must be at most "
            f"tidelog.connection.request.bytes.max ({connection.held_bytes_max})"
        )


def _ordered_pairs(values: SettingValues) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Pairs of settings, with their values, of which the first must not be larger than the second."""
    groups, replication = values.group(GroupSettings), values.group(ReplicationSettings)
    logs, connection = values.group(BrokerLogSettings), values.group(ConnectionSettings)
    yield (
        ("group.min.session.timeout.ms", groups.group_min_session_timeout_ms),
        ("group.max.session.timeout.ms", groups.group_max_session_timeout_ms),
    )
    yield (
        ("replica.fetch.wait.max.ms", replication.replica_fetch_wait_max_ms),
        ("replica.lag.time.max.ms", replication.replica_lag_time_max_ms),
    )
    yield (
        ("log.cleaner.min.compaction.lag.ms", logs.log_cleaner_min_compaction_lag_ms),
        ("log.cleaner.max.compaction.lag.ms", logs.log_cleaner_max_compaction_lag_ms),
    )
    yield (
        ("tidelog.connection.request.bytes.max", connection.held_bytes_max),
        ("queued.max.request.bytes", connection.queued_max_request_bytes),
    )
    yield (
        ("tidelog.connection.reply.bytes.max", connection.unsent_bytes_max),
        ("tidelog.reply.bytes.max", connection.reply_bytes_max),
    )


def _check_sweep_age(tier: TierSettings, logs: BrokerLogSettings) -> None:
    """An unfinished copy is an unreferenced object, which must not be swept."""
    limit = tier.copy_bytes_per_second
    if limit <= 0:
        return
    together = tier.copies_max * logs.log_segment_bytes
    needed_ms = math.ceil(together / limit * 1_000)
    if tier.sweep_age_ms < needed_ms:
        raise SettingError(
            f"tidelog.tier.sweep.age.ms: {tier.sweep_age_ms} is not valid, it must be at least "
            f"{needed_ms}: so long tidelog.tier.copy.threads ({tier.copies_max}) segments of "
            f"log.segment.bytes ({logs.log_segment_bytes}) take at "
            f"tidelog.tier.copy.bytes.per.second ({limit:g})"
        )


def _check_local_retention(logs: BrokerLogSettings) -> None:
    """By default brokers must not have to keep more of a tiered topic than the whole topic has."""
    for what, local, total in (
        ("ms", logs.log_local_retention_ms, logs.log_retention_ms),
        ("bytes", logs.log_local_retention_bytes, logs.log_retention_bytes),
    ):
        if total == -1 or local == -2 or -1 < local <= total:
            continue
        raise SettingError(
            f"log.local.retention.{what}: {local} is not valid, it must be at most log.retention.{what} ({total}), "
            "or -2 for as much"
        )


def _check_tier_uri(uri: str) -> None:
    from object_store.uri import InvalidStoreUri, parse_uri  # noqa: PLC0415  only where a store is named

    try:
        parse_uri(uri)
    except InvalidStoreUri as error:
        raise SettingError(f"tidelog.tier.uri: {error}") from error


def _check_schedule(tier: TierSettings) -> None:
    name = "tidelog.spark.schedule"
    try:
        parse_schedule(tier.spark_schedule)
    except ScheduleError as error:
        raise SettingError(f"{name}: {error}") from error
