"""How long `tidelog tier check` and `spark verify --bootstrap` wait for a bucket that follows its state."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from object_store.limits import StoreLimits
from tests.tiering.tier_world import PATH
from tidelog.admin.admin_client import ClusterOptions
from tidelog.commands import tier_repair
from tidelog.tier import access as tier_access
from tidelog.tier import check as tier_check
from tidelog.tier.access import Answers, store_trouble
from tidelog.tier.check import LOOKS, PATIENT_LOOKS, Patience, check_partition
from tidelog.tier.waiting import FIRST_S, reported_wait
from tiering.shard.description import BrokerTier
from tiering.upkeep.checking import Disagreement, State

BEHIND = Disagreement("manifest", "it shows __tier_state up to offset 20, which stands at 27", is_behind=True)
ORPHAN = Disagreement("objects", "named by nobody", is_harmless=True)
ANSWERS = Answers([BrokerTier(broker_id=0, cluster_id="cluster-1")], [])
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


# a store that hangs


class HungStore(io.StringIO):
    """A store that takes connections and never answers, until somebody is told of it: then it breaks them."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__()
        self._server = server
        self.uri = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{server.getsockname()[1]}&region=eu-central-1"

    def write(self, text: str) -> int:
        self._server.close()
        return super().write(text)


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungStore]:
    """It would be given up after a minute."""
    limits = StoreLimits(attempt_timeout_s=60.0, silence_timeout_s=60.0, attempts_max=1)
    monkeypatch.setattr(tier_access, "StoreLimits", lambda: limits)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield HungStore(server)


def test_who_waits_for_a_store_that_hangs_is_told_soon(hung: HungStore) -> None:
    assert FIRST_S <= 2.0
    assert store_trouble(ANSWERS, hung.uri, lambda text: print(text, file=hung))
    assert hung.getvalue() == "waiting for the object store s3://bucket/prefix to answer, for up to 60 s\n"


def test_what_check_waits_for_is_not_mixed_into_its_json(
    hung: HungStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tier_repair, "admin_client", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(tier_access, "ask_brokers", lambda _: ANSWERS)
    with contextlib.redirect_stderr(hung), pytest.raises(typer.Exit) as ended:
        tier_repair.check(tier=hung.uri, cluster=ClusterOptions(), as_json=True)
    assert ended.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["store"] != "answers"
    assert hung.getvalue().startswith("waiting for the object store s3://bucket/prefix to answer")


def test_who_waits_for_what_the_store_holds_of_a_partition_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    asked = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        asked.set()

    def read(*_: object) -> list[Disagreement]:
        assert asked.wait(30)
        return [ORPHAN]

    client: Any = None
    bucket: Any = (SimpleNamespace(name="s3://bucket"), None)
    monkeypatch.setattr(tier_check, "read_state", lambda *_: State(True, 0, 0, 0, 27, []))
    monkeypatch.setattr(tier_check, "_compare_read", read)
    assert check_partition(client, bucket, PATH, Patience(), say=say) == [ORPHAN]
    assert said == [f"waiting for the object store s3://bucket to tell of {PATH.topic}-{PATH.partition}"]


def test_it_is_said_again_and_no_more_after_the_end() -> None:
    said: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            twice.set()

    with reported_wait(say, "somebody", 90.0, first_s=0.0, every_s=0.01):
        assert twice.wait(30)
    told_before = len(said)
    assert "reported-wait" not in {thread.name for thread in threading.enumerate()}
    assert said[:2] == ["waiting for somebody, for up to 90 s", "waiting for somebody, for up to 90 s (0 s so far)"]
    with reported_wait(say, "nobody"):
        pass
    assert len(said) == told_before, "what is quick is not told of"


def test_the_bound_of_a_call_to_s3_counts_attempts_and_pauses() -> None:
    limits = StoreLimits(attempt_timeout_s=10.0, attempts_max=4, backoff_first_s=1.0, backoff_max_s=3.0)
    assert limits.s3_call_s == 4 * 10.0 + 1.0 + 2.0 + 3.0
