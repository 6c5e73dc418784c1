"""Whether settings, as an operator writes them, can stand together; imports nothing of what nodes are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from common.broker_settings import NODE_SETTINGS
from common.settings import SettingError, listener_of
from tidelog.job_schedule import ScheduleError, parse_schedule


def check_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """All values; SettingError when one is unknown, out of range, or two contradict each other."""
    values = NODE_SETTINGS.values(given)
    _check_contradictions(values)
    if values["tidelog.tier.uri"]:
        _check_tier_uri(values["tidelog.tier.uri"])
        _check_sweep_age(values)
        _check_local_retention(given, values)
    _check_schedule(values)
    return values


def check_own_of_listeners(names: Iterable[str], listeners: Iterable[str]) -> None:
    """SettingError when one of the settings `names` is a listener's own, and there is no such listener."""
    there = list(listeners)
    known = {listener.lower() for listener in there}
    for name in names:
        listener = listener_of(name)
        if listener is not None and listener not in known:
            raise SettingError(f"{name}: there is no listener {listener}, there are {', '.join(there)}")


def _check_contradictions(values: Mapping[str, Any]) -> None:
    def ordered(low: str, high: str) -> None:
        if values[low] > values[high]:
            raise SettingError(f"{low}: {values[low]} is not valid, it must be at most {high} ({values[high]})")

    ordered("group.min.session.timeout.ms", "group.max.session.timeout.ms")
    ordered("replica.fetch.wait.max.ms", "replica.lag.time.max.ms")
    ordered("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
    ordered("tidelog.connection.request.bytes.max", "queued.max.request.bytes")
    ordered("tidelog.connection.reply.bytes.max", "tidelog.reply.bytes.max")
    if values["broker.heartbeat.interval.ms"] * 2 > values["broker.session.timeout.ms"]:
        raise SettingError(
            f"broker.heartbeat.interval.ms: {values['broker.heartbeat.interval.ms']} is not valid, it must be at most "
            f"half of broker.session.timeout.ms ({values['broker.session.timeout.ms']})"
        )
    if values["socket.request.max.bytes"] > values["tidelog.connection.request.bytes.max"]:
        raise SettingError(
            f"socket.request.max.bytes: {values['socket.request.max.bytes']} is not valid, it must be at most "
            f"tidelog.connection.request.bytes.max ({values['tidelog.connection.request.bytes.max']})"
        )


def _check_sweep_age(values: Mapping[str, Any]) -> None:
    """A copy on its way is an object that nothing names: it must not be old enough to be swept."""
    limit = values["tidelog.tier.copy.bytes.per.second"]
    if limit <= 0:
        return
    together = values["tidelog.tier.copy.threads"] * values["log.segment.bytes"]
    needed_ms = math.ceil(together / limit * 1_000)
    if values["tidelog.tier.sweep.age.ms"] < needed_ms:
        raise SettingError(
            f"tidelog.tier.sweep.age.ms: {values['tidelog.tier.sweep.age.ms']} is not valid, it must be at least "
            f"{needed_ms}: so long tidelog.tier.copy.threads ({values['tidelog.tier.copy.threads']}) segments of "
            f"log.segment.bytes ({values['log.segment.bytes']}) take at "
            f"tidelog.tier.copy.bytes.per.second ({limit:g})"
        )


def _check_local_retention(given: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """By default the brokers must not have to keep more of a tiered topic than the whole topic has."""
    total_ms = values["log.retention.ms"]
    for name, unit_ms in (("log.retention.hours", 3_600_000), ("log.retention.minutes", 60_000)):
        if "log.retention.ms" not in given and values[name] != -1:
            total_ms = values[name] * unit_ms
    for what, total in (("ms", total_ms), ("bytes", values["log.retention.bytes"])):
        local = values[f"log.local.retention.{what}"]
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


def _check_schedule(values: Mapping[str, Any]) -> None:
    name = "tidelog.spark.schedule"
    try:
        parse_schedule(values[name])
    except ScheduleError as error:
        raise SettingError(f"{name}: {error}") from error
