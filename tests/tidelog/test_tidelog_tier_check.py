"""How long `tidelog tier check` and `spark verify --bootstrap` wait for a bucket that follows its state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiering.tier_world import PATH
from tidelog import tier_check
from tidelog.tier_check import LOOKS, PATIENT_LOOKS, Patience, check_partition
from tiering.checking import Disagreement, State

BEHIND = Disagreement("manifest", "it shows __tier_state up to offset 20, which stands at 27", is_behind=True)
ORPHAN = Disagreement("objects", "named by nobody", is_harmless=True)
WRONG = Disagreement("objects", "an object is missing")


class Cluster:
    """What each look finds; the last of it ever after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: list[Disagreement]) -> None:
        self.looks = list(looks)
        self.looked = 0
        self.said: list[str] = []
        monkeypatch.setattr(tier_check, "read_state", lambda *_: State(True, 0, 0, 0, 27, []))
        monkeypatch.setattr(tier_check, "_compare", self._compare)

    def _compare(self, *_: object) -> list[Disagreement]:
        self.looked += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def check(self, patience: Patience) -> list[Disagreement]:
        client: Any = None
        bucket: Any = (None, None)
        self.looked = 0
        return check_partition(client, bucket, PATH, patience, lambda _: None, self.said.append)


@pytest.mark.parametrize("looks", [1, LOOKS + 1, PATIENT_LOOKS])
def test_a_manifest_that_catches_up_late_is_no_disagreement(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    cluster = Cluster(monkeypatch, *([BEHIND, ORPHAN] for _ in range(looks)), [ORPHAN])
    assert cluster.check(Patience()) == [ORPHAN]
    assert cluster.looked == looks + 1
    assert len(cluster.said) == (looks >= LOOKS)  # who waits for long is told what for


def test_one_that_never_catches_up_is_told_and_holds_up_the_others_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, patience = Cluster(monkeypatch, [BEHIND]), Patience()
    assert cluster.check(patience) == [BEHIND]
    assert cluster.looked == LOOKS + PATIENT_LOOKS
    assert cluster.check(patience) == [BEHIND]
    assert cluster.looked == LOOKS


@pytest.mark.parametrize("found", [[WRONG], [BEHIND, WRONG]])
def test_what_no_manifest_would_cure_is_told_soon(monkeypatch: pytest.MonkeyPatch, found: list[Disagreement]) -> None:
    cluster, patience = Cluster(monkeypatch, found), Patience()
    assert cluster.check(patience) == found
    assert (cluster.looked, patience.looks, cluster.said) == (LOOKS, PATIENT_LOOKS, [])
