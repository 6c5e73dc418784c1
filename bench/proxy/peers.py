"""The proxies that are compared: Tidelog's and haproxy, with one certificate, one backend, one core each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.embedded import free_ports
from bench.peers import MissingTool
from bench.proxy.clients import Target, connect, exchange, request
from bench.proxy.names import DOMAIN
from tidelog.cluster.certificates import authority, tenants_certificate

ROOT = Path(__file__).resolve().parents[2]
START_S = 20.0
HAPROXY = """global
  nbthread 1
  maxconn 6500
  ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets
defaults
  mode tcp
  timeout client 10m
  timeout server 10m
  timeout connect 3s
frontend terminated
  bind 127.0.0.1:{terminated} ssl crt {certificate}
  default_backend broker
frontend passed
  bind 127.0.0.1:{passed}
  option splice-auto
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_hello_type 1 }}
  use_backend broker if {{ req.ssl_sni -m end .{domain} }}
backend broker
  server one 127.0.0.1:{backend} send-proxy-v2 proxy-v2-options authority
"""


class Peers:
    """Starts what is asked for and keeps it until the end; the proxies share a core that nothing else here uses."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._running: list[subprocess.Popen[bytes]] = []
        self._allowed = os.sched_getaffinity(0)
        cores = sorted(self._allowed)
        self.proxy_core, self._other_cores = cores[0], set(cores[1:]) or set(cores)
        self.certificate = tenants_certificate(work, authority(work), DOMAIN)
        first = free_ports(8)
        self.backend, self._ports = 0, list(range(first, first + 8))

    def __enter__(self) -> Peers:
        os.sched_setaffinity(0, self._other_cores)
        self.backend = self._ports.pop()
        self._start([sys.executable, "-m", "bench.proxy.backend", str(self.backend)], proxy=False)
        return self

    def __exit__(self, *_: object) -> None:
        os.sched_setaffinity(0, self._allowed)  # or the next ones would find one core for everything
        for process in self._running:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def port(self) -> int:
        """A free one."""
        return self._ports.pop()

    def direct(self) -> Target:
        return Target("no proxy", self.backend, [self._running[0].pid], "none")

    def haproxy(self) -> dict[str, Target]:
        """Both ways, by `tls`. Raises MissingTool."""
        if shutil.which("haproxy") is None:
            raise MissingTool("haproxy is not installed (Debian: apt-get install haproxy), so nothing can be compared")
        terminated, passed = self._ports.pop(), self._ports.pop()
        config = self._work / "haproxy.cfg"
        config.write_text(
            HAPROXY.format(
                terminated=terminated,
                passed=passed,
                certificate=self.certificate,
                domain=DOMAIN,
                backend=self.backend,
            )
        )
        process = self._start(["haproxy", "-db", "-f", str(config)], proxy=True)
        targets = {
            "terminated": Target("haproxy", terminated, [process.pid]),
            "passed": Target("haproxy", passed, [process.pid], "passed"),
        }
        wait_serving(targets["terminated"])
        return targets

    def tidelog(self) -> dict[str, Target]:
        """Both ways, by `tls`; a process each."""
        made = {}
        for tls, more in (("terminated", [str(self.certificate)]), ("passed", [])):
            port = self._ports.pop()
            line = [sys.executable, "-m", "bench.proxy.serve", str(port), str(self.backend), *more]
            made[tls] = Target("tidelog", port, [self._start(line, proxy=True).pid], tls)
            wait_serving(made[tls])
        return made

    def _start(self, line: list[str], *, proxy: bool) -> subprocess.Popen[bytes]:
        cores = {self.proxy_core} if proxy else self._other_cores
        process = subprocess.Popen(
            line,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # noqa: PLW1509  the child has no threads yet
        )
        self._running.append(process)
        return process


def wait_serving(target: Target) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            with connect(target) as sock:
                exchange(sock, request(64, 64), 64, memoryview(bytearray(64)))
            return
        except (OSError, EOFError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def both(work: Path) -> Iterator[tuple[dict[str, Target], dict[str, Target]]]:
    """Tidelog's and haproxy's targets."""
    with Peers(work) as peers:
        theirs = peers.haproxy()
        yield peers.tidelog(), theirs
