"""A tier whose directory goes away under load: producers notice nothing, nothing that is not copied leaves the disk,
and copying catches up by itself."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.faults.raw_client import wait_until
from tests.faults.watched_node import WatchedNode, fetch_request, produce_request, some_batch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults-store")]

SETTINGS = {
    "tidelog.tier.interval.ms": "100",
    "log.dir.free.bytes.min": "0",
    "log.retention.check.interval.ms": "500",
}
OUTAGE_REQUESTS = 300  # so many are answered while the store is away
PAUSE_S = 0.005
VALUE_BYTES = 4_000


class Load:
    """One producer's batches, one after the other; how many were answered, and the errors among the answers."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self._node, self._topic = WatchedNode(cluster), topic
        self._stop = threading.Event()
        self.answered = 0
        self.errors: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._node.connect() as client:
            while not self._stop.wait(PAUSE_S):
                answer = client.ask(produce_request(self._topic, some_batch(bytes(VALUE_BYTES))), 9)
                code = answer.responses[0].partition_responses[0].error_code
                self.errors += [code] if code else []
                self.answered += 1

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, controllers=1, data=tmp_path / "d", settings=SETTINGS) as running:
        yield running


def metric(cluster: EmbeddedCluster, name: str) -> float:
    text = urllib.request.urlopen(f"http://{WatchedNode(cluster).row['metrics']}/metrics", timeout=5).read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def store_status(cluster: EmbeddedCluster) -> dict[str, object]:
    """As `tidelog tier status` tells it."""
    found: dict[str, object] = json.loads(cluster.command_of("tier", "status", "--json"))["store"]
    return found


def away(tier: Path) -> Callable[[], None]:
    """As an unmounted file system, or a mount point that is an empty file."""
    kept = tier.with_name("kept")
    tier.rename(kept)
    tier.write_bytes(b"")

    def back() -> None:
        tier.unlink()
        kept.rename(tier)

    return back


def without_root(tier: Path) -> Callable[[], None]:
    kept = tier.with_name("kept")
    tier.rename(kept)

    def back() -> None:
        kept.rename(tier)

    return back


@pytest.mark.parametrize("fault", [away, without_root])
def test_a_tier_that_goes_away_under_load_is_missed_by_nobody(
    cluster: EmbeddedCluster, fault: Callable[[Path], Callable[[], None]]
) -> None:
    configs = ("remote.storage.enable=true", "segment.bytes=65536", "local.retention.ms=1")
    words = [word for config in configs for word in ("--config", config)]
    cluster.command_of("topics", "create", "history", "--partitions", "1", *words)
    load = Load(cluster, "history")
    broker = WatchedNode(cluster)
    try:
        wait_until(lambda: metric(cluster, "tidelog_tier_copied_segments_total") >= 5)
        copied = metric(cluster, "tidelog_tier_copied_segments_total")
        back = fault(cluster.data / "tier")
        answered = load.answered
        wait_until(lambda: load.answered >= answered + OUTAGE_REQUESTS, 60)
        wait_until(lambda: metric(cluster, "tidelog_tier_copy_lag_bytes") > 5 * 65_536)
        assert not load.errors
        assert metric(cluster, "tidelog_tier_copied_segments_total") <= copied + 2
        wait_until(lambda: not store_status(cluster)["answers"])
        assert store_status(cluster)["reason"]
        back()
        load.finish()
        wait_until(lambda: metric(cluster, "tidelog_tier_copy_lag_bytes") == 0, 40)
        assert store_status(cluster)["answers"]
        with broker.connect() as client:
            for offset in (0, load.answered - 1):  # what only the tier holds by now, and the last record
                fetch = fetch_request("history", offset=offset)
                wait_until(lambda f=fetch: bool(client.ask(f, 11).responses[0].partitions[0].records))  # type: ignore[misc]
        assert broker.is_same_process
    finally:
        load.finish()
