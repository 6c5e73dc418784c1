"""Settings: parsing, ranges, names of variables."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.topics import TopicDefaults
from common.settings import (
    CLUSTER_WIDE,
    Catalogue,
    Setting,
    SettingError,
    environment_name,
    overridden,
    read_properties,
    same,
    seconds,
    setting,
)
from common.topic_settings import TOPIC_SETTINGS

EVERY = [*NODE_SETTINGS, *TOPIC_SETTINGS]


@pytest.mark.parametrize("setting", EVERY, ids=lambda s: s.name)
def test_a_default_survives_its_own_text_and_lies_in_its_range(setting: Setting) -> None:
    assert setting.doc.endswith(".")
    if setting.default != "" or not setting.choices:
        assert setting.parse(setting.text(setting.default)) == setting.default


def test_no_two_settings_share_a_variable() -> None:
    variables = [environment_name(s.name) for s in NODE_SETTINGS]
    assert len(set(variables)) == len(variables)
    assert environment_name("tidelog.tier.uri") == "TIDELOG_TIER_URI"
    assert environment_name("log.segment.bytes") == "TIDELOG_LOG_SEGMENT_BYTES"


def test_synonyms_are_declared_settings_of_the_same_type() -> None:
    for topic_setting in TOPIC_SETTINGS:
        for synonym in topic_setting.synonyms:
            assert NODE_SETTINGS[synonym].type_name == topic_setting.type_name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "three"),
        ("num.partitions", "1_000"),
        ("num.partitions", str(1 << 31)),
        ("auto.create.topics.enable", "yes"),
        ("log.cleanup.policy", "delete,shred"),
        ("log.cleaner.min.cleanable.ratio", "1.5"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_and_the_range(name: str, text: str) -> None:
    with pytest.raises(SettingError) as refused:
        NODE_SETTINGS[name].parse(text)
    assert name in str(refused.value)
    assert NODE_SETTINGS[name].range_text in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match=r"num\.partition: no such setting; did you mean num\.partitions"):
        NODE_SETTINGS.values({"num.partition": "3"})


def test_a_setting_is_declared_once() -> None:
    one = Setting("a", "int", 1, "A.")
    with pytest.raises(SettingError, match="twice"):
        Catalogue([one, one])


def test_a_secret_value_is_not_shown() -> None:
    with pytest.raises(SettingError) as refused:
        Setting("key", "int", 1, "A key.", sensitive=True).parse("hunter2")
    assert "hunter2" not in str(refused.value)


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_an_integer_in_range_parses_and_any_other_is_refused(value: int) -> None:
    setting = Setting("s", "int", 5, "A number.", 1, 1_000)
    if 1 <= value <= 1_000:
        assert setting.parse(str(value)) == value
    else:
        with pytest.raises(SettingError):
            setting.parse(str(value))


def test_variables_override_by_name_and_foreign_ones_are_left_alone() -> None:
    environment = {"TIDELOG_LOG_SEGMENT_BYTES": "4096", "TIDELOG_SOMETHING": "x", "PATH": "/bin"}
    assert NODE_SETTINGS.from_environment(environment) == {"log.segment.bytes": "4096"}


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# comment\n! comment\n\na=1\n b = two words \nlong=first,\\\n  second\nurl=http://x?y=z\n"
    assert read_properties(text) == {"a": "1", "b": "two words", "long": "first,second", "url": "http://x?y=z"}
    with pytest.raises(SettingError, match="line 1"):
        read_properties("no separator")


def count_letters(text: str) -> int:
    if not text.isalpha():
        raise ValueError(text)
    return len(text)


@dataclass(frozen=True, slots=True)
class Depths:
    depth_max: int = setting("depth.max", "int", 5, "How deep.", 1, update=CLUSTER_WIDE, per_listener=True)
    width_s: float = setting("width.ms", "long", 1_500, "How wide.", read_as=seconds)
    letters: int = setting("letters", "string", "abc", "Counted.", update=CLUSTER_WIDE, read_as=count_letters)
    key: str = setting("key", "string", "", "A secret.", sensitive=True)


@dataclass(frozen=True, slots=True)
class Reader(Depths):
    own: int = 3
    turns: float = same(TopicDefaults, "num_partitions", float)


DEPTHS = Catalogue([Depths])


def test_a_group_holds_defaults_and_what_was_given_as_its_reader_wants_it() -> None:
    assert Depths() == Depths(5, 1.5, 3, "")
    values = DEPTHS.values({"depth.max": "7", "width.ms": "20", "letters": "ab"})
    assert values.group(Depths) == Depths(7, 0.02, 2, "")
    assert values.group(Reader) == Reader(7, 0.02, 2, "", 3, 1.0)
    assert NODE_SETTINGS.values({"num.partitions": "4"}).group(Reader) == Reader(turns=4.0)


def test_a_value_that_cannot_be_read_is_refused_as_one_out_of_its_range() -> None:
    with pytest.raises(SettingError, match="letters: '12' is not valid, it must be any string"):
        DEPTHS.values({"letters": "12"}).group(Depths)


def test_a_listener_has_its_own_values_then_everybodys_or_nothing_but_its_own() -> None:
    values = DEPTHS.values({"depth.max": "7", "listener.name.in.depth.max": "8", "listener.name.out.depth.max": "9"})
    assert [values.group(Depths, name).depth_max for name in ("IN", "OUT", "OTHER", "")] == [8, 9, 7, 7]
    assert [values.own_group(Depths, name).depth_max for name in ("IN", "OUT", "OTHER")] == [8, 9, 5]


def test_a_group_changes_where_the_first_of_the_overrides_says_so_and_nothing_needs_a_restart() -> None:
    started = Reader(depth_max=2, own=1)
    assert overridden(started, {}, {}) is started
    nearest, farther = {"depth.max": "3", "width.ms": "9", "unknown": "x"}, {"depth.max": "4", "letters": "a"}
    assert overridden(started, nearest, farther) == Reader(depth_max=3, letters=1, own=1)
    assert overridden(started, nearest, farther, listener="IN") is started
    assert overridden(started, {"listener.name.in.depth.max": "6"}, nearest, listener="IN").depth_max == 6


def test_a_secret_is_not_in_its_groups_repr() -> None:
    assert "hunter2" not in repr(Depths(key="hunter2"))


@pytest.mark.parametrize("group", [*NODE_SETTINGS.groups, *TOPIC_SETTINGS.groups], ids=lambda one: one.__name__)
def test_a_field_has_the_type_of_what_it_holds(group: type) -> None:
    """Also where a default is taken from another declaration, whose type mypy does not see."""
    plain: dict[Any, Any] = {int: int, float: (int, float), str: str, bool: bool, tuple[str, ...]: tuple}
    for field in dataclasses.fields(group):
        held = getattr(group(), field.name)
        assert isinstance(held, plain.get(field.type, Mapping))
        assert field.type is bool or not isinstance(held, bool)
