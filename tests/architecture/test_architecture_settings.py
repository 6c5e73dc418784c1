"""Every declared setting has an effect: what an operator writes is never silently ignored."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from broker.config import BrokerConfig, LogDuties, ReplicationConfig, RequestLimits, TierReads
from broker.tier.config import TierConfig
from common.broker_settings import NODE_SETTINGS
from common.settings import Setting
from common.topic_settings import TOPIC_SETTINGS
from storage.log_config import LogConfig

ROOT = Path(__file__).parents[2]
ROOMS = ("tidelog", "broker", "kraft", "storage", "wire")
SOURCES = {path: path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
SYNONYMS = {synonym: setting.name for setting in TOPIC_SETTINGS for synonym in setting.synonyms}
LOG_FIELDS = {field.name for field in dataclasses.fields(LogConfig)}
FILLED_KINDS = (LogDuties, ReplicationConfig, RequestLimits, TierReads)
FILLED = {field.name for kind in FILLED_KINDS for field in dataclasses.fields(kind)}


def is_named(name: str) -> bool:
    return any(f'"{name}"' in text for text in SOURCES.values())


def is_read(field: str) -> bool:
    return any(re.search(rf"\.{field}\b", text) for text in SOURCES.values())


@pytest.mark.parametrize("name", [setting.name for setting in TOPIC_SETTINGS if not setting.inert])
def test_a_topic_setting_has_an_effect(name: str) -> None:
    field = name.replace(".", "_")
    assert (field in LOG_FIELDS and is_read(field)) or is_named(name)


@pytest.mark.parametrize("name", [setting.name for setting in NODE_SETTINGS if not setting.inert])
def test_a_node_setting_has_an_effect(name: str) -> None:
    field = name.removeprefix("tidelog.").replace(".", "_")
    filled = {field, field.removeprefix("log_")} & FILLED
    assert name in SYNONYMS or is_named(name) or any(is_read(one) for one in filled)


INERT = [setting for setting in (*NODE_SETTINGS, *TOPIC_SETTINGS) if setting.inert]


@pytest.mark.parametrize("setting", INERT, ids=lambda one: one.name)
def test_a_setting_without_effect_says_so_and_is_read_by_nobody(setting: Setting) -> None:
    assert setting.doc.startswith("Without effect: ")
    assert not is_named(setting.name)
    assert all(NODE_SETTINGS[synonym].inert for synonym in setting.synonyms)


def test_what_is_dynamic_is_read_through_the_image() -> None:
    """As a topic setting's default, or by those that name it; what is read once, at the start, needs a restart."""
    dynamic = {s.name for s in NODE_SETTINGS if not s.needs_restart and not s.inert} - SYNONYMS.keys()
    assert dynamic == {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
        "num.recovery.threads.per.data.dir",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "tidelog.broker.cordoned",
        "tidelog.tier.enable",
        "tidelog.tier.roll.ms",
    }


@pytest.mark.parametrize("kind", [BrokerConfig, *FILLED_KINDS, TierConfig, LogConfig])
def test_a_field_of_a_config_is_read(kind: type) -> None:
    assert [field.name for field in dataclasses.fields(kind) if not is_read(field.name)] == []
