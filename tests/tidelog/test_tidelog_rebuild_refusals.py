"""A rebuild that is refused leaves all as it was: the living cluster keeps its bucket, and no directory stays."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bench.embedded import free_ports
from kraft.rebuilding.rebuild import CannotRebuild
from object_store.blocking import BlockingStore
from records.events import Event, EventsHeader, encode_events
from tidelog.command_line import application
from tidelog.commands.tier_rebuild import REBUILD_FILE
from tidelog.tier.rebuild import look, take_over
from tiering.bucket.cluster_file import begin_incarnation, read_cluster_file
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import METADATA, ExportKey, export_key

CLUSTER_ID = "cluster-1"
ROOT = TierRoot(CLUSTER_ID)
EXPORT = export_key(ROOT, ExportKey(METADATA, 1, 0, 7))
BROKER: Event = {"event": "broker", "broker_id": 0, "rack": None}

UNREADABLE: Event = {"event": "topic", "name": "flights"}


def bucket(path: Path, *events: Event) -> Path:
    """Of a living cluster of incarnation 1, which has exported its metadata."""
    path.mkdir()
    with BlockingStore(path.as_uri()) as store:
        store.wait(lambda: begin_incarnation(store.store, ROOT, 5))
        store.put(EXPORT, exported(*events))
    return path


def exported(*events: Event) -> bytes:
    header = EventsHeader(kind=METADATA, cluster_id=CLUSTER_ID, incarnation=1, scope=0, position=7, created_ms=5)
    return encode_events(header, list(events))


def everything(path: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob("*"))}


def incarnation(tier: Path) -> int:
    with BlockingStore(tier.as_uri()) as store:
        found = store.wait(lambda: read_cluster_file(store.store, ROOT))
    assert found is not None
    return found[0].incarnation


def rebuild(tier: Path, *words: str) -> Result:
    return CliRunner().invoke(application(), ["tier", "rebuild", "--tier", tier.as_uri(), "--no-wait", *words])


@pytest.fixture(autouse=True)
def _nothing_can_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "nosuch"))  # a Python that finds nothing of its own ends at once


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
        ([BROKER, UNREADABLE], "cannot be read"),
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


def test_the_bucket_is_taken_when_all_that_can_be_refused_is_done(tmp_path: Path) -> None:
    """A cluster that does not come up after all is there to be started again."""
    tier, new = bucket(tmp_path / "tier", BROKER), tmp_path / "new"
    done = rebuild(tier, "--data", str(new), "--port", str(free_ports(3)))
    assert done.exit_code == 1
    assert "the cluster did not start" in done.stderr
    assert incarnation(tier) == 2
    assert (new / REBUILD_FILE).exists()
    assert f"tidelog up --data {new}" in done.stderr
    assert (new / "cluster.json").exists()


def test_a_bucket_that_goes_bad_after_the_take_over_is_told(tmp_path: Path) -> None:
    """All was well when it was looked at; what is read then changes while the take-over waits for its lock."""
    tier, new = bucket(tmp_path / "tier", BROKER), tmp_path / "new.metadata"

    def damage() -> None:
        begun, ends_at = tier / ".unfinished", time.monotonic() + 30
        while len(os.listdir(begun)) < 2:  # beside the lock, what is to replace the cluster's file
            assert time.monotonic() < ends_at
        (tier / EXPORT).write_bytes(exported(BROKER, UNREADABLE))
        os.close(lock)

    lock = os.open(tier / ".unfinished" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as thread:
        damaged = thread.submit(damage)
        done = rebuild(tier, "--out", str(new))
        damaged.result(30)
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr
    assert incarnation(tier) == 2
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
