"""`tidelog console` as a process beside a cluster, and a real browser on it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import private_hosts
from bench.embedded import EmbeddedCluster, free_ports

READY_S = 60.0
WAIT_MS = 20_000


class ConsoleProgram:
    """In a block: the console of an embedded cluster. `hosts` is a hosts file of its own, for tenants' names."""

    def __init__(self, cluster: EmbeddedCluster, *options: str, hosts: Path | None = None) -> None:
        self._cluster = cluster
        self._options = options
        self._hosts = hosts
        self.port = free_ports(1)
        self.address = f"http://localhost:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ConsoleProgram:
        words = [sys.executable, "-m", "tidelog", "console", "--data", str(self._cluster.data)]
        words += ["--port", str(self.port), *self._options]
        if self._hosts is not None:
            words = private_hosts.inside(self._hosts, words)
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__()
                raise RuntimeError("the console did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def missing() -> str:
    """Why there is no browser here; empty if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if chromium() else "there is no Chromium (Debian's package chromium)"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def browser(arguments: Sequence[str] = ()) -> Iterator[Any]:
    """A Chromium; `missing` says whether there is one."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  not everyone has it

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", *arguments])
        try:
            yield started
        finally:
            started.close()


def enter(page: Any, address: str) -> None:
    """As anonymous, on a cluster that asks for no login."""
    page.goto(f"{address}/login")
    page.get_by_role("button", name="Enter as anonymous").click()
    page.wait_for_selector(".person")


def log_in(page: Any, address: str, user: str, password: str, tenant: str = "") -> None:
    page.goto(f"{address}/login")
    page.locator("[name=user]").fill(user)
    page.locator("[name=password]").fill(password)
    if tenant:
        page.get_by_label("Tenant's id").fill(tenant)
    with page.expect_navigation():
        page.get_by_role("button", name="Log in", exact=True).click()
