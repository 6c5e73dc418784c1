"""Settings: parsing, ranges, names of variables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.broker_settings import NODE_SETTINGS
from common.settings import Catalogue, Setting, SettingError, environment_name, read_properties
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
