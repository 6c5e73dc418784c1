"""`tidelog proxy` as processes: what it knows while controllers are away, workers that die, are replaced and drain."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from common.pacing import at_once
from common.settings import SettingError
from proxy.limits import ProxyLimits
from proxy.route_file import IDENTITY_BYTES, RouteWriter
from tests.proxy.proxy_world import (
    DOMAIN,
    HOST,
    LOOPBACK,
    Authority,
    EchoBroker,
    blocking_client,
    echoed,
    table,
)
from tidelog.configuration.proxy_config import proxy_config, within_descriptors

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


class ProxyProcess:
    """The command, with routes that it knew before; its controllers cannot be reached."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.config = directory / "proxy.properties"
        self.settings = settings
        self.write()
        line = [sys.executable, "-m", "tidelog", "proxy", "--config", str(self.config)]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDELOG_")}
        self.process = subprocess.Popen(
            line, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def write(self) -> None:
        self.config.write_text("".join(f"{name}={text}\n" for name, text in self.settings.items()))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"{what}; log:\n" + "\n".join(self.lines[-40:])
            time.sleep(0.02)

    def said(self, pattern: str, times: int = 1) -> bool:
        return sum(re.search(pattern, line) is not None for line in list(self.lines)) >= times

    @property
    def port(self) -> int:
        found = next(re.search(r'event="node serves".* port=(\d+)', line) for line in self.lines if "serves" in line)
        assert found is not None
        return int(found[1])

    def children(self) -> list[int]:
        return [
            int(word) for word in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        for pid in [*self.children(), self.process.pid] if self.process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(WAIT_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


@dataclass(slots=True)
class World:
    proxy: ProxyProcess
    broker: EchoBroker
    authority: Authority
    certificate: Path

    def connect(self, name: str = HOST) -> ssl.SSLSocket:
        return blocking_client(self.proxy.port, self.authority.client_context(), name)


@contextlib.contextmanager
def free_port() -> Iterator[int]:
    """Of which nothing listens."""
    import socket  # noqa: PLC0415

    with socket.socket() as held:
        held.bind((LOOPBACK, 0))
        yield held.getsockname()[1]


@contextlib.asynccontextmanager
async def started(tmp_path: Path, authority: Authority, days: float = 30, **settings: str) -> AsyncIterator[World]:
    broker = EchoBroker()
    address = await broker.start()
    data = tmp_path / "data"
    at_once(RouteWriter(MachineDisk(data), lambda: bytes(IDENTITY_BYTES)).writing(table(address), ()))
    (tmp_path / "secret").write_text("x" * 32)
    certificate = authority.write(tmp_path / "both.pem", (f"*.{DOMAIN}",), days)
    with free_port() as dead, free_port() as page:
        given = {
            "node.id": "7",
            "log.dirs": str(data),
            "tidelog.cluster.secret.file": str(tmp_path / "secret"),
            "controller.quorum.voters": f"1@{LOOPBACK}:{dead}",
            "tidelog.metrics.listener": f"{LOOPBACK}:0",
            "tidelog.proxy.host": LOOPBACK,
            "tidelog.proxy.port": "0",
            "tidelog.proxy.domain": DOMAIN,
            "tidelog.proxy.workers": "2",
            "tidelog.proxy.certificate.file": str(certificate),
            "tidelog.proxy.certificate.check.ms": "100",
            "tidelog.proxy.drain.ms": "1500",
        } | {name.replace("_", "."): text for name, text in settings.items()}
        if "page" in settings:
            del given["page"]
            given["tidelog.metrics.listener"] = f"{LOOPBACK}:{page}"
        else:
            page = 0
    proxy = ProxyProcess(tmp_path, given)
    try:
        await asyncio.to_thread(proxy.until, lambda: proxy.said("node serves"), "it does not serve")
        yield World(proxy, broker, authority, certificate)
    finally:
        proxy.kill()
        await broker.stop()


async def test_its_handshakes_leave_no_tickets(tmp_path: Path, authority: Authority) -> None:
    """Whatever else of the program loads OpenSSL's library."""

    def tickets(world: World) -> bool:
        with world.connect() as sock:
            assert echoed(sock, b"x") == b"x"
            assert sock.version() == "TLSv1.3" and sock.session is not None
            return sock.session.has_ticket

    async with started(tmp_path, authority) as world:
        assert not await asyncio.to_thread(tickets, world)


async def test_it_serves_what_it_knows_while_controllers_are_away_and_ends_in_order(
    tmp_path: Path, authority: Authority
) -> None:
    async with started(tmp_path, authority, page="yes") as world:

        def talk() -> None:
            for _ in range(6):
                with world.connect() as sock:
                    assert echoed(sock, b"hello") == b"hello"
            url = f"http://{world.proxy.settings['tidelog.metrics.listener']}"
            with urllib.request.urlopen(f"{url}/readyz", timeout=WAIT_S) as answer:
                assert answer.status == 200

            def counted() -> bool:
                with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as page:
                    return b"tidelog_proxy_connections_opened_total 6.0" in page.read()

            world.proxy.until(counted, "the workers' counters are not summed")
            open_one = world.connect()
            assert world.proxy.end() == 0
            assert open_one.recv(1) == b""

        await asyncio.to_thread(talk)


async def test_nobody_is_waited_for_where_nobody_is(tmp_path: Path, authority: Authority) -> None:
    """Whoever was there and has gone does not count, nor does who says nothing."""
    async with started(tmp_path, authority, tidelog_proxy_drain_ms="600000") as world:

        def talk() -> None:
            with world.connect() as sock:
                assert echoed(sock, b"hello") == b"hello"
            with world.connect() as quiet:
                assert echoed(quiet, b"hello") == b"hello"
                assert world.proxy.end() == 0
                assert quiet.recv(1) == b""

        await asyncio.to_thread(talk)


async def test_a_second_signal_ends_at_once_who_is_at_work(tmp_path: Path, authority: Authority) -> None:
    async with started(tmp_path, authority, tidelog_proxy_drain_ms="600000") as world:

        def work() -> None:
            """Without a pause, so that nothing but its proxy's patience ends it."""
            with world.connect() as busy, contextlib.suppress(OSError):
                while busy.send(b"hello") and busy.recv(5):
                    at_work.set()

        def stop() -> None:
            assert at_work.wait(WAIT_S)
            world.proxy.process.send_signal(signal.SIGTERM)
            world.proxy.until(lambda: world.proxy.said("worker drains", 2), "it does not drain")
            world.proxy.process.send_signal(signal.SIGTERM)
            assert world.proxy.process.wait(WAIT_S) == 0

        at_work = threading.Event()
        await asyncio.gather(asyncio.to_thread(work), asyncio.to_thread(stop))


async def test_a_rolling_restart_loses_no_connection(tmp_path: Path, authority: Authority) -> None:
    async with started(tmp_path, authority, tidelog_proxy_workers="4") as world:
        stop = threading.Event()
        knocks = [0, 0, 0]
        lost: list[str] = []

        def knock(who: int) -> None:
            while not stop.is_set():
                try:
                    with world.connect() as sock:
                        assert echoed(sock, b"knock") == b"knock"
                    knocks[who] += 1
                except Exception as error:
                    lost.append(repr(error))

        def all_knock_again() -> None:
            heard = list(knocks)
            world.proxy.until(lambda: all(map(operator.gt, knocks, heard)), "some client is not served")

        def restart() -> None:
            knocking = [threading.Thread(target=knock, args=(who,)) for who in range(len(knocks))]
            for one in knocking:
                one.start()
            try:
                all_knock_again()
                before = set(world.proxy.children())
                held = world.connect()
                world.proxy.process.send_signal(signal.SIGUSR1)
                world.proxy.until(lambda: world.proxy.said("worker drains", 4), "not all workers drain")
                assert held.recv(1) == b"", "an old worker's connection ends in order"
                world.proxy.until(lambda: not before & set(world.proxy.children()), "old processes stay")
                all_knock_again()
            finally:
                stop.set()
                for one in knocking:
                    one.join(WAIT_S)
            assert len(world.proxy.children()) == 5

        await asyncio.to_thread(restart)
        assert lost == []


async def test_replaced_workers_have_read_the_settings_anew(tmp_path: Path, authority: Authority) -> None:
    async with started(tmp_path, authority) as world:

        def restart() -> None:
            world.proxy.settings["tidelog.proxy.deny.networks"] = "not a network"
            world.proxy.write()
            world.proxy.process.send_signal(signal.SIGUSR1)
            world.proxy.until(lambda: world.proxy.said("settings cannot be used"), "wrong settings are not told")
            world.connect().close()
            world.proxy.settings["tidelog.proxy.deny.networks"] = "127.0.0.0/8"
            world.proxy.write()
            world.proxy.process.send_signal(signal.SIGUSR1)
            world.proxy.until(lambda: world.proxy.said("worker drains", 2), "not all workers drain")
            with pytest.raises(OSError):  # noqa: PT011  the kind depends on how far the client came
                world.connect()

        await asyncio.to_thread(restart)


async def test_a_dead_worker_is_started_again_and_nobody_outlives_the_parent(
    tmp_path: Path, authority: Authority
) -> None:
    async with started(tmp_path, authority) as world:

        def hurt() -> None:
            before = world.proxy.children()
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            world.proxy.until(lambda: world.proxy.said("process of the proxy died", 3), "deaths are not told")
            world.proxy.until(lambda: len(world.proxy.children()) == 3, "they are not started again")
            with world.connect() as sock:
                assert echoed(sock, b"hello") == b"hello"
            children = world.proxy.children()
            world.proxy.process.kill()
            world.proxy.process.wait(WAIT_S)
            world.proxy.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "children stay")

        await asyncio.to_thread(hurt)


@pytest.mark.parametrize("by_signal", [False, True])
async def test_a_certificate_is_replaced_without_a_restart(
    tmp_path: Path, authority: Authority, by_signal: bool
) -> None:
    every_ms = "600000" if by_signal else "100"
    async with started(tmp_path, authority, tidelog_proxy_certificate_check_ms=every_ms) as world:

        def renew() -> None:
            held = world.connect()
            world.certificate.write_text("nonsense")
            if by_signal:
                world.proxy.process.send_signal(signal.SIGHUP)
            world.proxy.until(lambda: world.proxy.said("not reloaded.*no PEM", 2), "a bad file is not told")
            world.connect().close()
            other = Authority.make()
            other.write(world.certificate, (f"*.{DOMAIN}",))
            if by_signal:
                world.proxy.process.send_signal(signal.SIGHUP)
            world.proxy.until(lambda: world.proxy.said("certificate reloaded", 2), "a new file is not used")
            with pytest.raises(ssl.SSLCertVerificationError):
                world.connect()
            blocking_client(world.proxy.port, other.client_context()).close()
            assert echoed(held, b"x") == b"x"
            held.close()

        await asyncio.to_thread(renew)


@pytest.mark.parametrize(("days", "line"), [(3, "certificate ends soon.* days=[23]"), (-1, "certificate has ended")])
async def test_the_end_of_a_certificate_is_told(tmp_path: Path, authority: Authority, days: float, line: str) -> None:
    async with started(tmp_path, authority, days) as world:
        await asyncio.to_thread(world.proxy.until, lambda: world.proxy.said(line), "nothing is said")
        assert sum(line.split(".", maxsplit=1)[0] in one for one in world.proxy.lines) == 1
        if days < 0:
            with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
                await asyncio.to_thread(world.connect)


def given(tmp_path: Path, authority: Authority, **settings: str) -> dict[str, str]:
    (tmp_path / "secret").write_text("x" * 32)
    return {
        "node.id": "7",
        "tidelog.cluster.secret.file": str(tmp_path / "secret"),
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "tidelog.proxy.domain": DOMAIN,
        "tidelog.proxy.certificate.file": str(authority.write(tmp_path / "both.pem", (f"*.{DOMAIN}",))),
    } | {name.replace("_", "."): text for name, text in settings.items()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tidelog_proxy_domain": ""}, "tidelog.proxy.domain"),
        ({"tidelog_proxy_domain": "127.0.0.1"}, "tidelog.proxy.domain"),
        ({"tidelog_proxy_certificate_file": ""}, "tidelog.proxy.certificate.file"),
        ({"tidelog_proxy_certificate_file": "/nowhere"}, "/nowhere"),
        ({"tidelog_proxy_broker_certificate_file": "/nowhere"}, "tidelog.proxy.broker.ca.file"),
        ({"tidelog_proxy_deny_networks": "10.0.0.0/33"}, "tidelog.proxy.deny.networks"),
        ({"tidelog_proxy_hello_bytes_max": "100"}, "tidelog.proxy.hello.bytes.max"),
        ({"controller_quorum_voters": ""}, "controller.quorum.voters"),
        ({"node_id": "-1"}, "node.id"),
    ],
)
def test_what_a_proxy_cannot_start_with_is_named(
    tmp_path: Path, authority: Authority, settings: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(named)):
        proxy_config(given(tmp_path, authority, **settings))


def test_settings_become_the_proxys_values(tmp_path: Path, authority: Authority) -> None:
    config = proxy_config(
        given(
            tmp_path,
            authority,
            tidelog_proxy_idle_ms="5000",
            tidelog_proxy_drain_ms="0",
            tidelog_proxy_workers="3",
            tidelog_proxy_allow_networks="10.0.0.0/8,::1",
        )
    )
    assert (config.limits.idle_s, config.limits.drain_s, config.limits.workers, config.workers) == (5.0, 0.0, 3, 3)
    assert config.terminates
    assert config.rules.permits("10.1.2.3")
    assert not config.rules.permits("11.1.2.3")
    passing = proxy_config(given(tmp_path, authority, tidelog_proxy_mode="passthrough"))
    assert not passing.terminates


def test_connections_fit_into_the_open_files(tmp_path: Path, authority: Authority) -> None:
    config = proxy_config(given(tmp_path, authority))
    assert within_descriptors(config, 1 << 20).limits == config.limits
    fitted = within_descriptors(config, 4_096).limits
    assert 2 * fitted.connections + fitted.opening < 4_096
    with pytest.raises(SettingError, match="open files"):
        within_descriptors(config, 600)


def test_an_unset_setting_has_the_default_of_the_proxys_parts(tmp_path: Path, authority: Authority) -> None:
    config = proxy_config(given(tmp_path, authority, tidelog_proxy_workers="1"))
    plain = ProxyLimits(tenant_connections=1_000, tenant_new_per_second=100.0)
    assert config.limits == plain
