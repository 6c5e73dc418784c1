"""A rebuild that is refused leaves all as it was: the living cluster keeps its bucket, and no directory stays."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.embedded import free_ports
from kraft.rebuilding.rebuild import CannotRebuild
from object_store.blocking import BlockingStore
from object_store.errors import StoreUnavailable
from records.events import Event, EventsHeader, encode_events
from tidelog.command_line import app
from tidelog.commands import tier_rebuild as command
from tidelog.output import fail
from tidelog.tier import rebuild as tier_rebuild
from tidelog.tier.rebuild import look, take_over
from tiering.bucket.cluster_file import begin_incarnation, read_cluster_file
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import METADATA, ExportKey, export_key

CLUSTER_ID = "cluster-1"
ROOT = TierRoot(CLUSTER_ID)
BROKER: Event = {"event": "broker", "broker_id": 0, "rack": None}


def bucket(path: Path, *events: Event) -> Path:
    """Of a living cluster of incarnation 1, which has exported its metadata."""
    header = EventsHeader(
        kind=METADATA, cluster_id=CLUSTER_ID, incarnation=1, scope=0, position=7, created_ms=5
    )  # fmt: skip
    path.mkdir()
    with BlockingStore(path.as_uri()) as store:
        store.wait(lambda: begin_incarnation(store.store, ROOT, 5))
        store.put(export_key(ROOT, ExportKey(METADATA, 1, 0, 7)), encode_events(header, list(events)))
    return path


def everything(path: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def incarnation(tier: Path) -> int:
    with BlockingStore(tier.as_uri()) as store:
        found = store.wait(lambda: read_cluster_file(store.store, ROOT))
    assert found is not None
    return found[0].incarnation


def rebuild(tier: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["tier", "rebuild", "--tier", tier.as_uri(), "--no-wait", *words])


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(root: Path) -> str:
        raise AssertionError(f"{root} was started")

    monkeypatch.setattr(command, "start_detached", start)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--data", "DIR/deep/new", "--port", "PORT"], "is taken by another process"),
        (["--data", "DIR/new", "--port", "FREE", "--controllers", "2"], "--controllers: 2 is not valid"),
        (["--data", "DIR/new", "--port", "FREE", "--brokers", "5000"], "--brokers"),
        (["--data", "DIR/new", "--port", "FREE", "--set", "log.segment.bytes=many"], "log.segment.bytes"),
        (["--data", "DIR/new", "--port", "FREE", "--set", "node.id=3"], "node.id"),
        (["--data", "DIR/new", "--port", "FREE", "--set", "broker.heartbeat.interval.ms=9000"], "at most half"),
        (
            ["--data", "DIR/new", "--port", "FREE", "--set", "max.connections.per.ip.overrides=x"],
            "max.connections.per.ip",
        ),
        (["--data", "DIR/full", "--port", "FREE"], "no empty directory"),
        (["--data", "DIR/file", "--port", "FREE"], "no empty directory"),
        (["--data", "DIR/file/new", "--port", "FREE"], "Not a directory"),
        (["--data", "DIR/new", "--port", "FREE", "--cluster", "another"], "holds nothing of cluster another"),
        (["--out", "DIR/none/metadata"], "No such file or directory"),
        (["--out", "DIR/full"], "is a directory"),
        (["--out", "DIR/new", "--broker", "x"], "--broker 'x'"),
        (["--data", "DIR/new", "--out", "DIR/new.metadata"], "either --data DIR"),
    ],
)
def test_what_is_asked_wrongly_changes_nothing(words: list[str], why: str, tmp_path: Path, taken_port: int) -> None:
    tier = bucket(tmp_path / "tier", BROKER)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("of somebody")
    (tmp_path / "file").write_text("no directory")
    before = everything(tmp_path)
    given = {"PORT": str(taken_port), "FREE": str(free_ports(3))}
    done = rebuild(tier, *(given.get(word, word).replace("DIR", str(tmp_path)) for word in words))
    assert done.exit_code in (1, 2)
    assert why in done.stderr
    assert everything(tmp_path) == before


@pytest.mark.parametrize("place", ["--data", "--out"])
@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([BROKER, {"event": "feature", "name": "metadata.version", "level": 30_000}], "knows no more than"),
        ([BROKER, {"event": "topic", "name": "flights"}], "cannot be read"),
        ([{"event": "cluster", "cluster_id": "another"}], "of cluster another"),
    ],
)
def test_a_bucket_of_which_no_cluster_can_be_made_changes_nothing(
    place: str, events: list[Event], why: str, tmp_path: Path
) -> None:
    tier = bucket(tmp_path / "tier", *events)
    before = everything(tmp_path)
    sizes = ["--port", str(free_ports(3))] if place == "--data" else []
    done = rebuild(tier, place, str(tmp_path / "new"), *sizes)
    assert done.exit_code == 1
    assert why in done.stderr
    assert everything(tmp_path) == before


def test_an_empty_directory_that_was_there_stays_and_is_empty_again(tmp_path: Path, taken_port: int) -> None:
    tier = bucket(tmp_path / "tier", BROKER)
    (tmp_path / "new").mkdir()
    assert rebuild(tier, "--data", str(tmp_path / "new"), "--port", str(taken_port)).exit_code == 1
    assert list((tmp_path / "new").iterdir()) == []


def test_the_bucket_is_taken_when_all_that_can_be_refused_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that does not come up after all is there to be started again."""
    tier, new = bucket(tmp_path / "tier", BROKER), tmp_path / "new"
    seen: list[int] = []

    def no_start(root: Path) -> str:
        seen.append(incarnation(tier))
        assert (root / command.REBUILD_FILE).exists()
        fail("the cluster did not start")

    monkeypatch.setattr(command, "start_detached", no_start)
    done = rebuild(tier, "--data", str(new), "--port", str(free_ports(3)))
    assert done.exit_code == 1
    assert seen == [2]
    assert f"tidelog up --data {new}" in done.stderr
    assert (new / "cluster.json").exists()


def test_a_store_that_fails_after_the_take_over_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, new = bucket(tmp_path / "tier", BROKER), tmp_path / "new"
    whole, calls = tier_rebuild.prepare, list[int]()

    async def fails_later(*given: object) -> tier_rebuild.Prepared:
        calls.append(incarnation(tier))
        if len(calls) > 1:
            raise StoreUnavailable("the store", "get", "", "it is gone")
        return await whole(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(tier_rebuild, "prepare", fails_later)
    done = rebuild(tier, "--data", str(new), "--port", str(free_ports(3)))
    assert done.exit_code == 1
    assert calls == [1, 2]
    assert "taken over already, as incarnation 2: rebuild again" in done.stderr
    assert not new.exists()


def test_two_rebuilds_at_once_take_the_bucket_once(tmp_path: Path) -> None:
    tier = bucket(tmp_path / "tier", BROKER)
    with BlockingStore(tier.as_uri()) as store:

        async def both() -> list[int | BaseException]:
            seen = [await look(store.store, CLUSTER_ID, [], random.Random(1)) for _ in range(2)]
            each = [take_over(store.store, one, 0.0, 9, lambda _: None) for one in seen]
            return await asyncio.gather(*each, return_exceptions=True)

        found = store.wait(both)
    assert sorted(type(one).__name__ for one in found) == [CannotRebuild.__name__, "int"]
    assert incarnation(tier) == 2
