"""The row of Kafka itself: one client through the proxy, the same over TLS to the broker, and the same in the clear.

One broker, one partition, one replica: everything that one record needs is in one process, so that what the proxy adds
is as large a part of the whole as it can be. All three write and read the same topic, as a tenant through the proxy, as
operators under its inner name; they take turns, and each keeps its connections.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from bench.peers import MissingTool
from bench.proxy.kafka_load import STREAM, TRIP, WAIT_S
from bench.proxy.peers import ROOT
from bench.rows import Figure, Scene, figure
from bench.tenant_clients import client_configuration
from tidelog.cluster.local_names import names_of

TENANT = "bench"
PROXIED, SECURE, PLAIN = "the proxy", "direct TLS", "direct plaintext"
RECORD_BYTES = 1024
STREAM_RECORDS = 100_000
IN_FLIGHT_RECORDS = 600
TRIP_RECORDS, TRIP_RATE = 1_000, 500.0
Results = dict[str, list[dict[str, dict[str, float]]]]  # by way: of each round, by load


class KafkaClient:
    """A process of `bench.proxy.kafka_load`. `hosts` is a file to have over /etc/hosts, where names need one."""

    def __init__(self, client: dict[str, Any], topics: dict[str, str], hosts: Path | None) -> None:
        line = [sys.executable, "-m", "bench.proxy.kafka_load"]
        words = line if hosts is None else private_hosts.inside(hosts, line)
        self._process = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._say({"client": client, "topics": topics})

    def run(self, load: str, **sizes: Any) -> dict[str, float]:
        self._say({"load": load, **sizes})
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the client ended in {load}")
        result: dict[str, float] = json.loads(line)
        return result

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(WAIT_S)

    def _say(self, words: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()


def processes(pid: int) -> list[int]:
    """It and what it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in processes(int(child)))]


def cpu_s(pids: list[int]) -> float:
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


@contextlib.contextmanager
def three_ways(work: Path) -> Iterator[tuple[dict[str, KafkaClient], list[int], list[int]]]:
    """A client for each way, and the processes of broker and proxy. Raises MissingTool where names do not resolve."""
    hosts = None if private_hosts.names_resolve() else private_hosts.new_file(work)
    if hosts is not None and (reason := private_hosts.problem()) is not None:
        raise MissingTool(reason)
    ways = dict[str, KafkaClient]()
    with EmbeddedCluster(1, controllers=1, proxies=1, tenants=[TENANT]) as cluster:
        tenant: dict[str, Any] = client_configuration(cluster.tenant_file(TENANT))
        host, _, _ = tenant["bootstrap.servers"].rpartition(":")
        tenant_id, _, domain = host.partition(".")
        if hosts is not None:
            private_hosts.add(hosts, names_of(tenant_id, [0], domain))
        topics = {use: f"{tenant_id}_{use}" for use in (STREAM, TRIP)}
        operator: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
        admin = AdminClient(operator | {"log_level": 0})
        made = admin.create_topics([NewTopic(name, 1, 1) for name in topics.values()])
        for outcome in made.values():
            outcome.result(WAIT_S)
        secure = {
            "bootstrap.servers": cluster.secure_bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": tenant["ssl.ca.location"],
        }
        pids = {row["role"]: processes(row["pid"]) for row in cluster.nodes()}
        try:
            ways[PROXIED] = KafkaClient(tenant, {use: use for use in topics}, hosts)
            ways[SECURE] = KafkaClient(secure, topics, hosts)
            ways[PLAIN] = KafkaClient(operator, topics, hosts)
            yield ways, pids["broker"], pids["proxy"]
        finally:
            for way in ways.values():
                way.end()


def serving_clients(scene: Scene) -> list[Figure]:
    """Produce and consume of 1 KB records, one record in flight, and a steady rate from end to end."""
    records, flights = scene.sized(STREAM_RECORDS, 1_000), scene.sized(IN_FLIGHT_RECORDS, 50)
    trips = scene.sized(TRIP_RECORDS, 50)
    stream = {"records": records, "size": RECORD_BYTES}
    loads: list[tuple[str, str, dict[str, Any]]] = [
        ("produce", "produce", stream),
        ("produce, lz4", "produce", stream | {"codec": "lz4"}),
        ("consume", "consume", {"records": records}),
        ("one in flight", "one_in_flight", {"records": flights, "size": RECORD_BYTES}),
        ("end to end", "end_to_end", {"records": trips, "size": RECORD_BYTES, "rate": TRIP_RATE}),
    ]
    found: Results = {PROXIED: [], SECURE: [], PLAIN: []}
    with three_ways(scene.work) as (ways, broker, proxy):
        for way in ways.values():
            for codec in ("none", "lz4"):
                way.run("produce", **stream, codec=codec)
            way.run("consume", records=records)
        for number in range(scene.rounds):
            for name in found if number % 2 == 0 else reversed(found):
                found[name].append({})
                for words, load, sizes in loads:
                    before = cpu_s(broker), cpu_s(proxy)
                    result = ways[name].run(load, **sizes)
                    used = cpu_s(broker) - before[0], cpu_s(proxy) - before[1]
                    if volume := result.pop("gigabytes", 0.0):
                        result |= {"cpu_s_gb": sum(used) / volume, "proxy_cpu_s_gb": used[1] / volume}
                    found[name][-1][words] = result
                    told = " ".join(f"{key}={value:.3g}" for key, value in result.items())
                    scene.say(f"{name:16} {words:13} {told}")
    return figures_of(found)


def figures_of(found: Results) -> list[Figure]:
    """Each beside TLS and beside plaintext; of latencies also what the proxy adds, by rounds."""

    def values(way: str, load: str, key: str) -> list[float]:
        return [one[load][key] for one in found[way]]

    made = []
    for load in ("produce", "produce, lz4", "consume"):
        for key, name, unit in (("mb_s", "", "MB/s"), ("cpu_s_gb", ", broker and proxy", "CPU s/GB")):
            made += [
                figure(f"{load}{name}", unit, values(PROXIED, load, key), other, values(other, load, key))
                for other in (SECURE, PLAIN)
            ]
        made.append(figure(f"{load}, the proxy's part", "CPU s/GB", values(PROXIED, load, "proxy_cpu_s_gb")))
    for load in ("one in flight", "end to end"):
        for key in ("p50_ms", "p99_ms"):
            name = f"{load}, {key[:3]}"
            ours = values(PROXIED, load, key)
            for other in (SECURE, PLAIN):
                theirs = values(other, load, key)
                added = [one - two for one, two in zip(ours, theirs, strict=True)]
                made.append(figure(name, "ms", ours, other, theirs))
                made.append(figure(f"added to {other}: {name}", "ms", added))
    return made
