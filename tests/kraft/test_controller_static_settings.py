"""What Apache Kafka reads at the start alone, and a setting here, are told apart by one list each."""

from __future__ import annotations

from common.node_settings.catalogue import NODE_SETTINGS
from kraft.controller.static_settings import STATIC_NAMES


def test_a_setting_that_is_had_here_says_itself_whether_it_needs_a_restart() -> None:
    assert [name for name in STATIC_NAMES if NODE_SETTINGS.get(name) is not None] == []
