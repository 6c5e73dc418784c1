"""A real Prometheus scrapes a cluster under load: each query of each board returns data, and each rule is evaluated.

What nodes show is compared with the catalogue too: names, labels, and how many values a label has.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from bench import private_hosts
from bench.embedded import EmbeddedCluster, free_ports
from common.metric_catalogue.catalogue import METRICS
from tests.boards.alarms import ALARMS
from tests.boards.observe_files import BOARDS, RULES
from tests.common.metric_rules import catalogue_problems, problems
from tests.faults.raw_client import wait_until
from tidelog.cluster.client_files import read_key
from tidelog.cluster.local_names import names_of

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.processes,
    pytest.mark.timeout(280),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]
BROKERS, DOMAIN = 2, "tidelog.localhost"
TENANT, TOPIC, GROUP = "acme", "flights", "slow"
SETTINGS = {
    "log.dir.free.bytes.min": "0",
    "group.initial.rebalance.delay.ms": "100",
    "tidelog.metrics.groups.interval.ms": "1000",
    "tidelog.usage.report.interval.ms": "1000",
    "tidelog.tier.interval.ms": "500",
}
SCRAPE_S, RATE_WINDOW = 1, "10s"
PATIENCE_S = 120.0
STARTS = 503
VALUE = b"x" * 500
SHOWN_AS = {"$__rate_interval": RATE_WINDOW, "$tenant": ".*"}


class Load:
    """An operator's producer and slow consumer, and a tenant's producer that is faster than its quota."""

    def __init__(self, cluster: EmbeddedCluster, hosts: Path | None) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        tiered = ("remote.storage.enable=true", "segment.bytes=65536", "local.retention.ms=1000")
        configs = [word for config in tiered for word in ("--config", config)]
        cluster.command_of("topics", "create", TOPIC, "--partitions", "4", *configs)
        cluster.command_of("tenants", "alter", TENANT, "--limit", "ingress.bytes.per.second=20000")
        tenant_id = read_key(cluster.tenant_file(TENANT, "key"))[2]
        if hosts is not None:
            private_hosts.add(hosts, names_of(tenant_id, range(BROKERS), DOMAIN))
        bootstrap = f"{tenant_id}.{DOMAIN}:{cluster.port + 1000}"
        reach = ["--bootstrap", bootstrap, "--command-config", str(cluster.tenant_file(TENANT))]

        def words(*command: str) -> list[str]:
            inside = [sys.executable, "-m", "tidelog", *command, *reach]
            return inside if hosts is None else private_hosts.inside(hosts, inside)

        done = subprocess.run(words("topics", "create", "orders"), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self._tenant = subprocess.Popen(
            words("produce", "orders", "--rate", "200"),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._threads = [threading.Thread(target=run) for run in (self._produce, self._consume, self._feed)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._cluster.bootstrap, "linger.ms": 20})
        for number in itertools.count():
            if self._stop.is_set():
                break
            producer.produce(TOPIC, VALUE, key=str(number))
            producer.poll(0.002)
        producer.flush(10)

    def _consume(self) -> None:
        client = {"bootstrap.servers": self._cluster.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
        consumer = Consumer(client)
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            consumer.poll(0.1)
        consumer.close()

    def _feed(self) -> None:
        assert self._tenant.stdin is not None
        try:
            while not self._stop.is_set():
                self._tenant.stdin.write(VALUE.decode() + "\n")
                self._stop.wait(0.004)
        except (BrokenPipeError, ValueError):
            pass

    def problem(self) -> str:
        """What the tenant's producer said when it ended, which it should not."""
        if self._tenant.poll() is None or self._tenant.stderr is None:
            return ""
        return self._tenant.stderr.read()[-2_000:]

    def stop(self) -> None:
        self._stop.set()
        self._tenant.kill()
        for thread in self._threads:
            thread.join()
        self._tenant.communicate()


class PrometheusServer:
    """Debian's Prometheus with the rules of docker/observe."""

    def __init__(self, directory: Path, targets: dict[str, list[str]]) -> None:
        port = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        config = {  # JSON is YAML
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in sorted(RULES.glob("*.yml"))],
            "scrape_configs": [
                {
                    "job_name": "tidelog",
                    "static_configs": [{"targets": found, "labels": {"role": role}} for role, found in targets.items()],
                }
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))
        self._process = subprocess.Popen(
            ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
             f"--web.listen-address={self.address}", "--log.level=error"],
        )  # fmt: skip

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; None while there is none."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=10) as page:
                return json.load(page)["data"]
        except urllib.error.HTTPError as error:
            if error.code == STARTS:
                return None
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        except OSError:
            return None

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedCluster, PrometheusServer, Load]]:
    root = tmp_path_factory.mktemp("prometheus")
    hosts = None
    if not private_hosts.names_resolve():
        reason = private_hosts.problem()
        if reason is not None:
            pytest.skip(reason)
        hosts = private_hosts.new_file(root)
    with EmbeddedCluster(brokers=BROKERS, controllers=1, proxies=1, tenants=[TENANT], settings=SETTINGS) as cluster:
        targets: dict[str, list[str]] = {}
        for node in cluster.nodes():
            targets.setdefault(node["role"], []).append(node["metrics"])
        assert set(targets) == {"broker", "controller", "proxy"}
        load, server = Load(cluster, hosts), PrometheusServer(root, targets)
        try:
            yield cluster, server, load
        finally:
            load.stop()
            server.stop()


def test_each_query_of_each_board_returns_data(watched: tuple[EmbeddedCluster, PrometheusServer, Load]) -> None:
    _, server, load = watched
    waiting = {_shown(query) for board in BOARDS for query in board.queries}
    assert len(waiting) > 90

    def without_data() -> set[str]:
        for query in list(waiting):
            if (server.ask("query", query=query) or {}).get("result"):
                waiting.discard(query)
        return waiting

    with contextlib.suppress(TimeoutError):  # what is missing says more
        wait_until(lambda: not without_data(), PATIENCE_S)
    assert not waiting, load.problem()
    assert load.problem() == ""
    for board in BOARDS:
        for variable in board.variables:
            assert server.ask(f"label/{variable.name}/values", **{"match[]": variable.metric}), variable


def test_each_rule_is_evaluated(watched: tuple[EmbeddedCluster, PrometheusServer, Load]) -> None:
    _, server, _ = watched

    def evaluated() -> list[dict[str, Any]]:
        """Empty until all are."""
        found = [rule for group in (server.ask("rules") or {"groups": []})["groups"] for rule in group["rules"]]
        return [] if any(rule["health"] == "unknown" for rule in found) else found

    wait_until(lambda: bool(evaluated()), PATIENCE_S)
    rules = evaluated()
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == {alarm.name for alarm in ALARMS}
    pages = [rule["name"] for rule in rules if rule.get("labels", {}).get("severity") == "page"]
    raised = [one["labels"]["alertname"] for one in server.ask("alerts")["alerts"] if one["state"] == "firing"]
    assert set(raised).isdisjoint(pages), "nothing is wrong with this cluster"


def test_nodes_show_what_the_catalogue_declares(watched: tuple[EmbeddedCluster, PrometheusServer, Load]) -> None:
    cluster, _, _ = watched
    seen: set[str] = set()
    for node in cluster.nodes():
        with urllib.request.urlopen(f"http://{node['metrics']}/metrics", timeout=10) as page:
            text = page.read().decode()
        assert problems(text) == [] and catalogue_problems(text, METRICS) == [], node
        seen |= {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert METRICS.keys() - seen == set(), "a cluster with a tier, tenants and proxies shows all metrics"


def _shown(query: str) -> str:
    for name, value in SHOWN_AS.items():
        query = query.replace(name, value)
    return query
