"""The cluster of a measurement, with a command that starts nothing."""

from __future__ import annotations

import pytest

from bench.embedded import EmbeddedCluster


class Unready(EmbeddedCluster):
    def __init__(self) -> None:
        super().__init__(brokers=1)
        self.ran: list[str] = []

    def command(self, *words: str) -> str:
        self.ran.append(words[0])
        if words[0] == "up":
            raise TimeoutError
        return ""


def test_a_cluster_that_does_not_become_ready_is_stopped() -> None:
    """Its nodes run all the same, and would go on after the measurement."""
    cluster = Unready()
    with pytest.raises(TimeoutError), cluster:
        pass
    assert cluster.ran == ["up", "down"]
    assert not cluster.data.parent.exists()
