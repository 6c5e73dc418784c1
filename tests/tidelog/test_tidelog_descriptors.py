"""Open files are divided so that clients cannot take what the logs need."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import BrokerConfig
from common.settings import SettingError
from tidelog.cluster.layout import prepare_layout
from tidelog.configuration.node_config import broker_config
from tidelog.nodes.descriptors import CACHE_MIN, OWN, divide
from tidelog.nodes.directory_lock import DirectoryInUse, held_directory


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {})
    return broker_config(layout.node_settings(layout.brokers[0], tmp_path))


@pytest.mark.parametrize("limit", [320, 400, 1_024, 4_096, 20_000, 1 << 31])
def test_the_parts_fit_into_the_whole(config: BrokerConfig, limit: int) -> None:
    divided = divide(config, limit)
    cached = divided.tier_reads.tier_cache_open_files_max
    assert divided.duties.open_files_max + divided.limits.files_max + cached + OWN <= limit + CACHE_MIN
    assert divided.duties.open_files_max >= 64
    assert divided.limits.files_max >= 64


def test_what_was_asked_for_is_not_exceeded(config: BrokerConfig) -> None:
    divided = divide(config, 1 << 40)
    assert divided.duties.open_files_max == config.duties.open_files_max
    assert divided.limits.connections_max == config.limits.connections_max
    assert divided.tier_reads == config.tier_reads


def test_ten_thousand_clients_fit_beside_the_logs(config: BrokerConfig) -> None:
    assert divide(config, 20_000).limits.files_max > 10_000


def test_too_few_for_any_broker_are_refused(config: BrokerConfig) -> None:
    with pytest.raises(SettingError, match="ulimit -n"):
        divide(config, 256)


def test_a_directory_has_one_holder(tmp_path: Path) -> None:
    used = pytest.raises(DirectoryInUse, match=r"log\.dirs: .*/a is used by another process")
    with held_directory(tmp_path / "a"), used:
        held_directory(tmp_path / "a").__enter__()
    with held_directory(tmp_path / "a"):
        assert (tmp_path / "a").stat().st_mode & 0o077 == 0, "metadata is in the clear there"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryInUse, match="file/d cannot be used"):
        held_directory(tmp_path / "file" / "d").__enter__()
