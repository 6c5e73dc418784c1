"""Every declared setting has an effect: what an operator writes is never silently ignored."""

from __future__ import annotations

import dataclasses
from functools import cache
from inspect import get_annotations
from pathlib import Path

import pytest

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.partitions.config import LogDuties
from broker.replication.config import ReplicationConfig
from broker.security.config import SecurityConfig
from broker.tier.config import TierConfig
from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import Setting, settings_of
from common.topic_settings import TOPIC_SETTINGS
from kraft.controller.leader_return import LeaderReturnConfig
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig
from kraft.controller.policy import ControllerPolicy
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.quorum import QuorumConfig
from proxy.config import ProxyConfig
from proxy.limits import ProxyLimits
from storage.log.log_config import LogConfig
from tests.architecture.attribute_reads import Reads
from wire.server import ServerLimits

ROOT = Path(__file__).parents[2]
ROOMS = ("tidelog", "broker", "proxy", "kraft", "tiering", "storage", "wire", "common")
GROUPS = [*NODE_SETTINGS.groups, *TOPIC_SETTINGS.groups]
SYNONYMS = {synonym for setting in TOPIC_SETTINGS for synonym in setting.synonyms}
CONFIGS = [
    AuditConfig, BrokerConfig, ControllerConfig, ControllerPolicy, GroupConfig, LeaderReturnConfig, LivenessConfig,
    LogConfig, LogDuties, NodeConfig, ProxyConfig, ProxyLimits, QuorumConfig, ReplicationConfig, SecurityConfig,
    ServerLimits, TierConfig,
]  # fmt: skip
Field = tuple[type, str]


@cache
def reads() -> Reads:
    """What the product does with settings."""
    fields = {field.name for kind in (*GROUPS, *CONFIGS) for field in dataclasses.fields(kind)}
    return Reads((path.read_text() for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))), fields)


def alike(group: type, field: str) -> set[tuple[str, str]]:
    """The fields that hold this setting, in this class and in others."""
    declared = group.__name__, field
    return {declared} | {own for own, setting in reads().aliases.items() if setting == declared}


def is_read(group: type, field: str) -> bool:
    return not alike(group, field).isdisjoint(reads().found)


def is_named(group: type, field: str) -> bool:
    """Whether it is looked up by its name, in the metadata or in what was given."""
    return (group.__name__, field) in reads().named


def topics_setting(group: type, field: str) -> list[Field]:
    """The topic setting that takes its default from this one, if any."""
    name = settings_of(group)[field].setting.name
    return [
        (of_topics, own)
        for of_topics in TOPIC_SETTINGS.groups
        for own, one in settings_of(of_topics).items()
        if name in one.setting.synonyms and of_topics is not group
    ]


SETTINGS = [(group, field) for group in GROUPS for field, one in settings_of(group).items() if not one.setting.inert]


def test_each_setting_is_read() -> None:
    assert [
        f"{group.__name__}.{field}"
        for group, field in SETTINGS
        if not any(is_read(*one) or is_named(*one) for one in [(group, field), *topics_setting(group, field)])
    ] == []


def test_each_field_of_a_config_is_read() -> None:
    assert [(kind, name) for kind in CONFIGS for name in get_annotations(kind) if not is_read(kind, name)] == []


def test_what_is_dynamic_is_read_through_the_image() -> None:
    assert [f"{group.__name__}.{field}" for group, field in SETTINGS if not is_renewed(group, field)] == []


def is_renewed(group: type, field: str) -> bool:
    """By a group that is made again under each image, or by name; what is read once, at the start, needs a restart."""
    setting = settings_of(group)[field].setting
    if setting.needs_restart or setting.name in SYNONYMS:
        return True
    holders = {holder for holder, _ in alike(group, field)}
    return is_named(group, field) or not holders.isdisjoint(reads().renewed)


INERT = [setting for setting in (*NODE_SETTINGS, *TOPIC_SETTINGS) if setting.inert]


@pytest.mark.parametrize("setting", INERT, ids=lambda one: one.name)
def test_a_setting_without_effect_says_so_and_is_read_by_nobody(setting: Setting) -> None:
    assert setting.doc.startswith("Without effect: ")
    owners = [(group, field) for group in GROUPS for field, one in settings_of(group).items() if one.setting is setting]
    assert not any(is_read(*owner) for owner in owners)
    assert all(NODE_SETTINGS[synonym].inert for synonym in setting.synonyms)


def test_a_read_counts_for_the_class_of_the_object_alone() -> None:
    source = """
class A:
    size: int

class B(A):
    other: int = same(C, "third")

class C:
    size: int
    third: int

class User:
    def __init__(self, of: B) -> None:
        self._of = of

    def use(self, text: str, c: C) -> None:
        self._of.size, text.size, unknown.other
        renewed = under(image, c)
"""
    found = Reads([source], {"size", "other", "third"})
    assert found.found == {("B", "size"), ("A", "size")}
    assert found.aliases == {("B", "other"): ("C", "third")}
    assert found.renewed == {"C"}
