"""How long `tidelog tier check` and `spark verify --bootstrap` wait for a bucket that follows its state."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from object_store.limits import StoreLimits
from tests.object_store.memory_store import MemoryStore
from tests.tidelog.tier_client import BROKER, StoreHere, TierClient
from tests.tiering.segments import uuid_of
from tests.tiering.test_tiering_checking import state_of
from tests.tiering.tier_world import PATH, ROOT, TierWorld
from tidelog.commands.tier_repair import check_tier
from tidelog.tier.access import Answers, store_trouble
from tidelog.tier.check import LOOKS, PATIENT_LOOKS, Patience, check_partition
from tidelog.tier.waiting import FIRST_S, reported_wait
from tiering.bucket.segment import SegmentId
from tiering.manifests.manifest_writer import ManifestWriter
from tiering.upkeep.checking import State

ANSWERS = Answers([BROKER], [])


class Cluster(TierClient):
    """A partition of which a copy came to nothing. Its manifest is behind for `behind_for` looks; with `loses`, an
    object that it names is gone."""

    def __init__(self, behind_for: float, *, loses: bool = False) -> None:
        super().__init__()
        self._behind_for = behind_for
        self._world = TierWorld()
        self._world.claim(1)
        self._world.copy([0, 10], 10)
        asyncio.run(self._publish())
        if behind_for:
            self._world.copy([20], 10)
        asyncio.run(self._world.store.put(ROOT.segment_key(PATH, SegmentId(70, uuid_of(70))), b"left behind"))
        if loses:
            del self._world.store.objects[ROOT.segment_key(PATH, next(self._world.tier.segments(0)).id)]
        self.said: list[str] = []

    @property
    def looked(self) -> int:
        return len(self.asked)

    async def _publish(self) -> None:
        for one in self._world.tier.segments(0):
            await self._world.store.put(ROOT.segment_key(PATH, one.id), bytes(one.object_bytes))
        await ManifestWriter(self._world.services, self._world.view()).publish()

    def state(self, number: int) -> State:
        if 0 < self._behind_for == number:
            asyncio.run(self._publish())
        return state_of(self._world.tier)

    def check(self, patience: Patience) -> list[str]:
        """What is found, in a word each."""
        client: Any = self
        bucket: Any = (StoreHere(self._world.store), ROOT)
        self.asked.clear()
        found = check_partition(client, bucket, PATH, patience, lambda _: None, self.said.append)
        return sorted("behind" if one.is_behind else "harmless" if one.is_harmless else "wrong" for one in found)


@pytest.mark.parametrize("looks", [1, LOOKS + 1, PATIENT_LOOKS])
def test_a_manifest_that_catches_up_late_is_no_disagreement(looks: int) -> None:
    cluster = Cluster(behind_for=looks)
    assert cluster.check(Patience()) == ["harmless"]
    assert cluster.looked == looks + 1
    assert len(cluster.said) == (looks >= LOOKS)  # who waits for long is told what for


def test_one_that_never_catches_up_is_told_and_holds_up_the_others_no_more() -> None:
    cluster, patience = Cluster(behind_for=math.inf), Patience()
    assert cluster.check(patience) == ["behind", "harmless"]
    assert cluster.looked == LOOKS + PATIENT_LOOKS
    assert cluster.check(patience) == ["behind", "harmless"]
    assert cluster.looked == LOOKS


@pytest.mark.parametrize(
    ("behind_for", "found"), [(0, ["harmless", "wrong"]), (math.inf, ["behind", "harmless", "wrong"])]
)
def test_what_no_manifest_would_cure_is_told_soon(behind_for: float, found: list[str]) -> None:
    cluster, patience = Cluster(behind_for, loses=True), Patience()
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
    """It would be given up after minutes."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield HungStore(server)


def test_who_waits_for_a_store_that_hangs_is_told_soon(hung: HungStore) -> None:
    assert FIRST_S <= 2.0
    assert store_trouble(ANSWERS, hung.uri, lambda text: print(text, file=hung))
    limit = f"for up to {StoreLimits().s3_call_s:.0f} s"
    assert hung.getvalue() == f"waiting for the object store s3://bucket/prefix to answer, {limit}\n"


def test_what_check_waits_for_is_not_mixed_into_its_json(hung: HungStore, capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = TierClient()
    with contextlib.redirect_stderr(hung), pytest.raises(typer.Exit) as ended:
        check_tier(client, None, hung.uri, as_json=True)
    assert ended.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["store"] != "answers"
    assert hung.getvalue().startswith("waiting for the object store s3://bucket/prefix to answer")


def test_who_waits_for_what_the_store_holds_of_a_partition_is_told() -> None:
    said: list[str] = []
    asked = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        asked.set()

    client: Any = TierClient(State(False, 0, 0, 0, 27, []))
    bucket: Any = (StoreHere(MemoryStore(), before=lambda: asked.wait(30)), ROOT)
    assert check_partition(client, bucket, PATH, Patience(), say=say) == []
    assert said == [f"waiting for the object store s3://bucket to list {PATH.topic}-{PATH.partition}"]


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
