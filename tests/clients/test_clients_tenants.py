"""Clients of others as tenants, through two proxies over TLS; proxies that die; keys that are no good."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from tests.clients.tenant_programs import value
from tidelog.cluster.client_files import read_key
from tidelog.cluster.local_names import names_of

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
BROKERS, RECORDS, TENANTS = 3, 300, ("demo", "other")
DOMAIN = "tidelog.localhost"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


class TenantWorld:
    """A cluster with two tenants, and a way to run programs where their names resolve."""

    def __init__(self, cluster: EmbeddedCluster, hosts: Path | None) -> None:
        self.cluster = cluster
        self.ids = {name: read_key(cluster.tenant_file(name, "key"))[2] for name in TENANTS}
        self._hosts = hosts
        if hosts is not None:
            private_hosts.add(hosts, [n for one in self.ids.values() for n in names_of(one, range(BROKERS), DOMAIN)])

    def words(self, *command: str) -> list[str]:
        return list(command) if self._hosts is None else private_hosts.inside(self._hosts, command)

    def run(self, *command: str, feed: str = "") -> subprocess.CompletedProcess[str]:
        words = self.words(*command)
        return subprocess.run(words, input=feed, capture_output=True, text=True, timeout=150, check=False)

    def program(self, library: str, properties: Path, topic: str, count: int) -> dict[str, Any]:
        """What the program saw."""
        done = self.run(*self.program_words(library, properties, topic, count))
        assert done.returncode == 0, done.stderr[-2_000:]
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return seen

    @staticmethod
    def program_words(library: str, properties: Path, topic: str, count: int) -> list[str]:
        return [sys.executable, "-m", "tests.clients.tenant_programs", library, str(properties), topic, str(count)]

    def changed(self, tenant: str, into: Path, **values: str) -> Path:
        """The tenant's client configuration with other values, dots for underscores."""
        text = self.cluster.tenant_file(tenant).read_text()
        for name, new in values.items():
            setting = name.replace("_", ".")
            text, count = re.subn(f"(?m)^{setting}=.*$", f"{setting}={new}", text)
            assert count == 1
        into.write_text(text)
        return into


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantWorld]:
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "log.dir.free.bytes.min": "0",
        "tidelog.tier.export.interval.ms": "1000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    resolves = private_hosts.names_resolve()
    if not resolves:
        reason = private_hosts.problem()
        assert reason is None, reason
    hosts = None if resolves else private_hosts.new_file(tmp_path_factory.mktemp("hosts"))
    with EmbeddedCluster(BROKERS, settings, controllers=1, proxies=2, tenants=TENANTS) as cluster:
        yield TenantWorld(cluster, hosts)


@pytest.mark.parametrize("library", ["confluent", "kafka_python", "aiokafka"])
def test_libraries_work_as_tenants(world: TenantWorld, library: str) -> None:
    """Both tenants use the same names, and neither sees anything of the other."""
    topic = f"same-{library.replace('_', '-')}"
    for tenant in TENANTS:
        seen = world.program(library, world.cluster.tenant_file(tenant), topic, RECORDS)
        assert sorted(seen["values"]) == sorted(value(number).decode() for number in range(RECORDS))
        assert topic in seen["topics"]
        assert not [name for name in seen["topics"] if "lkc-" in name or name.startswith("__")]
        own = world.ids[tenant]
        if "hosts" in seen:
            assert seen["hosts"] == [f"b{broker}-{own}.{DOMAIN}" for broker in range(BROKERS)]
            assert seen["cluster"] == own
        if "groups" in seen:
            assert f"g-{topic}" in seen["groups"]
            assert not [name for name in seen["groups"] if "lkc-" in name]


def test_a_tenant_sets_quotas_of_its_own_clients(world: TenantWorld) -> None:
    def quotas(tenant: str, *words: str) -> Any:
        properties = str(world.cluster.tenant_file(tenant))
        bootstrap = f"{world.ids[tenant]}.{DOMAIN}:{world.cluster.port + 1000}"
        reach = ("--bootstrap", bootstrap, "--command-config", properties, "--json")
        done = world.run(sys.executable, "-m", "tidelog", "quotas", *words, *reach)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    quotas("demo", "alter", "--client-id", "c", "consumer_byte_rate=1000000000")
    assert quotas("demo", "list") == [{"entity": {"client-id": "c"}, "quotas": {"consumer_byte_rate": 1_000_000_000}}]
    assert quotas("other", "list") == []
    assert quotas("demo", "delete", "--client-id", "c")["deleted"] == ["consumer_byte_rate"]


@pytest.mark.skipif(KCAT is None, reason="kcat is not installed here, so it was not run")
def test_the_ready_command_for_kcat_works(world: TenantWorld) -> None:
    script = str(world.cluster.tenant_file("demo", "kcat"))
    lines = [f"line {number}" for number in range(RECORDS)]
    produced = world.run("sh", script, "-P", "-t", "by-kcat", feed="\n".join(lines) + "\n")
    assert produced.returncode == 0, produced.stderr
    group = ("-G", "by-kcat", "-c", str(RECORDS), "-X", "auto.offset.reset=earliest", "by-kcat")
    consumed = world.run("sh", script, *group)
    assert sorted(consumed.stdout.splitlines()) == sorted(lines), consumed.stderr
    listed = world.run("sh", script, "-L", "-J")
    assert {row["name"] for row in json.loads(listed.stdout)["brokers"]} == {
        f"b{broker}-{world.ids['demo']}.{DOMAIN}:{world.cluster.port + 1000}" for broker in range(BROKERS)
    }


@pytest.mark.parametrize(
    ("properties", "errors"),
    [
        ({"sasl_password": "wrong"}, ["_AUTHENTICATION"]),
        ({"sasl_username": "TKAAAAAAAAAAAAAA"}, ["_AUTHENTICATION"]),
        ({"sasl_mechanism": "PLAIN", "sasl_password": "wrong"}, ["_AUTHENTICATION"]),
        ({"ssl_ca_location": "/etc/ssl/certs/ca-certificates.crt"}, ["_SSL"]),
    ],
    ids=["wrong secret", "unknown key", "wrong secret in PLAIN", "unknown authority"],
)
def test_who_has_no_good_key_stays_outside(
    world: TenantWorld, tmp_path: Path, properties: dict[str, str], errors: list[str]
) -> None:
    seen = world.program("refused", world.changed("demo", tmp_path / "changed", **properties), "none", 4)
    assert seen["topics"] is None
    assert set(errors) <= set(seen["errors"])


def test_a_key_is_of_no_use_on_another_tenants_host_name(world: TenantWorld, tmp_path: Path) -> None:
    """And fails as a wrong password does, so that nobody learns which keys there are."""
    elsewhere = f"{world.ids['other']}.{DOMAIN}:{world.cluster.port + 1000}"
    changed = world.changed("demo", tmp_path / "changed", bootstrap_servers=elsewhere)
    seen = world.program("refused", changed, "none", 4)
    wrong = world.program("refused", world.changed("demo", tmp_path / "wrong", sasl_password="wrong"), "none", 4)
    assert seen["topics"] is None
    assert seen["errors"] == wrong["errors"]


def test_a_tenant_that_is_not_there_is_refused_before_any_key(world: TenantWorld, tmp_path: Path) -> None:
    own = world.ids["demo"]
    other = f"{own[:-1]}{'a' if own[-1] != 'a' else 'b'}.{DOMAIN}"
    if world._hosts is not None:
        private_hosts.add(world._hosts, [other])
    changed = world.changed("demo", tmp_path / "x", bootstrap_servers=f"{other}:{world.cluster.port + 1000}")
    seen = world.program("refused", changed, "none", 4)
    assert seen["topics"] is None
    assert "_AUTHENTICATION" not in seen["errors"]


def test_a_revoked_key_is_refused_and_a_new_one_works(world: TenantWorld, tmp_path: Path) -> None:
    out = tmp_path / "key"
    world.cluster.command_of("keys", "create", "demo", "--out", str(out))
    key, secret, _ = read_key(out)
    changed = world.changed("demo", tmp_path / "changed", sasl_username=key, sasl_password=secret)
    assert world.program("refused", changed, "none", 30)["topics"] is not None
    world.cluster.command_of("keys", "revoke", key)
    assert world.program("refused", changed, "none", 4)["topics"] is None


def test_a_key_for_reading_does_not_write(world: TenantWorld, tmp_path: Path) -> None:
    script = str(world.cluster.tenant_file("demo", "librdkafka.properties"))
    assert KCAT is None or world.run(KCAT, "-F", script, "-P", "-t", "guarded", feed="one\n").returncode == 0
    out = tmp_path / "key"
    world.cluster.command_of("keys", "create", "demo", "--role", "read:guard", "--out", str(out))
    key, secret, _ = read_key(out)
    changed = world.changed("demo", tmp_path / "changed", sasl_username=key, sasl_password=secret)
    seen = world.program("refused", changed, "none", 30)
    assert seen["topics"] is not None
    assert all(topic.startswith("guard") for topic in seen["topics"]), "what may not be described is not listed"
    if KCAT is not None:
        read = world.run(KCAT, "-F", str(changed), "-C", "-t", "guarded", "-e", "-o", "beginning")
        assert read.stdout == "one\n", read.stderr
        options = ("-X", "message.timeout.ms=5000")
        written = world.run(KCAT, "-F", str(changed), "-P", "-t", "guarded", *options, feed="two\n")
        assert "authorization failed" in written.stderr.lower()


def test_a_proxy_that_dies_under_load_loses_nothing(world: TenantWorld) -> None:
    """Killed, started again, then stopped in order: clients come back through the other one."""
    words = world.words(*world.program_words("steady", world.cluster.tenant_file("demo"), "steady", 2_000))
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        errors: list[str] = []
        drain = threading.Thread(target=lambda: errors.extend(writer.stderr or []))
        drain.start()
        assert writer.stdout.readline() == "begun\n"
        for action, proxy in (("kill", 0), ("start", 0), ("kill", 1), ("start", 1), ("stop", 0), ("start", 0)):
            world.cluster.command(action, f"proxy-{proxy}")
            time.sleep(1.0)  # under load each time, and not only at the turn
        last = writer.stdout.readlines()[-1:]
        assert writer.wait(150) == 0, "".join(errors)[-2_000:]
        drain.join()
    seen = json.loads(last[0])
    assert seen["failed"] == []
    assert seen["acknowledged"] == [str(number) for number in range(2_000)]
    assert seen["values"] == seen["acknowledged"], "each once, in order"


def test_secrets_are_nowhere_but_in_their_files(world: TenantWorld, tmp_path: Path) -> None:
    """Neither a key's secret, nor the cluster's, nor a private key: not in logs, metrics, process lists, the
    controllers' journals and snapshots, brokers' files or the bucket."""
    data, wrong = world.cluster.data, "wr0ng-but-a-secret-all-the-same"
    for mechanism in ("SCRAM-SHA-256", "PLAIN"):
        changed = world.changed("demo", tmp_path / mechanism, sasl_mechanism=mechanism)
        assert world.program("refused", changed, "none", 30)["topics"] is not None
        changed = world.changed("demo", tmp_path / "w", sasl_mechanism=mechanism, sasl_password=wrong)
        assert world.program("refused", changed, "none", 3)["topics"] is None
    password = tmp_path / "password"
    password.write_text("pa55-of-an-operator\n")
    world.cluster.command_of("users", "set", "ada", "--password-file", str(password))
    secrets = {wrong, "pa55-of-an-operator", (data / "cluster.secret").read_text().strip()}
    secrets |= {read_key(world.cluster.tenant_file(tenant, "key"))[1] for tenant in TENANTS}
    for pem in (data / "tls").iterdir():
        secrets |= set(re.findall(r"PRIVATE KEY-----\n([A-Za-z0-9+/]{64})\n", pem.read_text()))
    assert len(secrets) >= 5 + 4
    key = read_key(world.cluster.tenant_file("demo", "key"))[0].encode()
    deadline = time.monotonic() + 60
    while not any(key in _content(path) for path in (data / "tier").rglob("*") if path.is_file()):
        assert time.monotonic() < deadline, "the bucket gets what the controllers know"
        time.sleep(0.1)
    places = list(_places(world))
    found = [(place, secret[:6]) for place, content in places for secret in secrets if secret.encode() in content]
    assert found == []
    seen = {re.split("-|(?<=/)", place)[0] for place, content in places if key in content}
    assert {"controller", "broker", "tier/", "tidelog keys list"} <= seen, "what is no secret is found where it belongs"


def _places(world: TenantWorld) -> Iterator[tuple[str, bytes]]:
    own = {"cluster.secret", "tenants", "tls"}
    data = world.cluster.data
    names = [path.relative_to(data).parts for path in data.rglob("*") if path.is_file()]
    kinds = {parts[0].partition("-")[0] for parts in names}
    assert {"broker", "controller", "proxy", "logs", "tier"} <= kinds, "all that is to be searched is there"
    for parts in names:
        if parts[0] not in own:
            yield "/".join(parts), _content(data / Path(*parts))
    for node in world.cluster.nodes():
        yield f"metrics of {node['node']}", _metrics(node["metrics"])
        for pid in _family(node["pid"]):
            for file in ("cmdline", "environ"):
                yield f"{file} of {node['node']}", Path(f"/proc/{pid}/{file}").read_bytes()
    for group in ("tenants", "keys", "users", "acls", "cells"):
        yield f"tidelog {group} list", world.cluster.command_of(group, "list", "--json").encode()
    yield "ps", subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, check=True).stdout


def _content(path: Path) -> bytes:
    """What a reader of the file would see; nothing of one that is gone by now."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return b""
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def _metrics(address: str) -> bytes:
    import urllib.request  # noqa: PLC0415

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        text: bytes = page.read()
    return text


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]
