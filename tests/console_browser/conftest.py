"""One cluster, one console and one browser for all tests; each test has a page of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import private_hosts
from bench.console_program import WAIT_MS, ConsoleProgram, browser, enter, missing
from bench.embedded import EmbeddedCluster
from common.host_names import bootstrap_host, broker_host
from tidelog.cluster.client_files import key_file, read_key

BROKERS = 4
DOMAIN = "tidelog.localhost"
TENANTS = ("demo", "other")
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="session", autouse=True)
def _browser_is_there() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(_browser_is_there: None) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(BROKERS, RIGHTS, proxies=1, tenants=TENANTS, cells=2) as started:
        yield started


@pytest.fixture(scope="session")
def hosts(cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """None where tenants' names resolve, or where they cannot be made to."""
    if private_hosts.names_resolve() or private_hosts.problem() is not None:
        return None
    file = private_hosts.new_file(tmp_path_factory.mktemp("hosts"))
    for tenant in TENANTS:
        identity = tenant_id(cluster, tenant)
        private_hosts.add(
            file,
            [bootstrap_host(identity, DOMAIN), *[broker_host(one, identity, DOMAIN) for one in range(BROKERS)]],
        )
    return file


@pytest.fixture(scope="session")
def console(cluster: EmbeddedCluster, hosts: Path | None) -> Iterator[ConsoleProgram]:
    with ConsoleProgram(cluster, hosts=hosts) as started:
        yield started


@pytest.fixture(scope="session")
def chromium(_browser_is_there: None) -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def stranger(chromium: Any) -> Iterator[Any]:
    """A page of someone who is not logged in. What the browser objects to fails the test, and so does any dialog."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(f"script: {error}"))
    page.on("dialog", lambda dialog: dismissed(dialog, said))
    page.on("console", lambda one: said.append(one.text) if "Content Security Policy" in one.text else None)
    yield page
    context.close()
    assert not said


def dismissed(dialog: Any, said: list[str]) -> None:
    said.append(f"dialog: {dialog.message}")
    dialog.dismiss()


@pytest.fixture(scope="session")
def entered(chromium: Any, console: ConsoleProgram) -> list[Any]:
    """The cookies of one login: logins are limited, and there are many pages."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT_MS)
    enter(context.new_page(), console.address)
    cookies: list[Any] = context.cookies()
    context.close()
    return cookies


@pytest.fixture
def page(stranger: Any, console: ConsoleProgram, entered: list[Any]) -> Any:
    """A page of `anonymous`, who may do everything on this cluster."""
    stranger.context.add_cookies(entered)
    stranger.goto(console.address)
    stranger.wait_for_selector(".person")
    return stranger


def tenant_id(cluster: EmbeddedCluster, tenant: str) -> str:
    return read_key(key_file(cluster.data / "tenants", tenant))[2]
