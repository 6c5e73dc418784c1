"""A proxy beside a real cluster: it learns tenants from the controllers, and serves on without them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.proxy.proxy_world import DOMAIN, LOOPBACK, Authority, blocking_client, trusting_context
from tests.tidelog.test_tidelog_proxy import ProxyProcess

pytestmark = pytest.mark.processes


@contextlib.contextmanager
def proxy_beside(cluster: EmbeddedCluster, tmp_path: Path, authority: Authority) -> Iterator[ProxyProcess]:
    voters = [
        f"{node['id']}@{node['listeners']['INTERNAL']}" for node in cluster.nodes() if node["role"] == "controller"
    ]
    proxy = ProxyProcess(
        tmp_path,
        {
            "node.id": "2000",
            "log.dirs": str(tmp_path / "proxy"),
            "controller.quorum.voters": ",".join(voters),
            "tidelog.cluster.secret.file": str(cluster.data / "cluster.secret"),
            "tidelog.metrics.listener": f"{LOOPBACK}:0",
            "tidelog.proxy.host": LOOPBACK,
            "tidelog.proxy.port": "0",
            "tidelog.proxy.domain": DOMAIN,
            "tidelog.proxy.workers": "2",
            "tidelog.proxy.certificate.file": str(authority.write(tmp_path / "both.pem", (f"*.{DOMAIN}",))),
            "tidelog.proxy.broker.listener": "PLAINTEXT",
        },
    )
    try:
        proxy.until(lambda: proxy.said("node serves"), "it does not serve")
        yield proxy
    finally:
        proxy.kill()


def is_routed(proxy: ProxyProcess, tenant: str) -> bool:
    """Whether both workers let the tenant in; each connection meets one of them."""
    try:
        for _ in range(8):
            blocking_client(proxy.port, trusting_context(), f"{tenant}.{DOMAIN}").close()
    except ConnectionError:  # a worker that is just being started again
        return False
    except ssl.SSLError as error:
        if "UNRECOGNIZED_NAME" not in str(error):
            raise
        return False
    return True


def test_tenants_come_and_go_and_stay_known_without_controllers(tmp_path: Path) -> None:
    authority = Authority.make()
    with (
        EmbeddedCluster(brokers=1, controllers=1) as cluster,
        proxy_beside(cluster, tmp_path, authority) as proxy,
    ):
        first, second = (
            json.loads(cluster.command_of("tenants", "create", name, "--json"))["id"] for name in ("first", "second")
        )
        proxy.until(lambda: is_routed(proxy, first) and is_routed(proxy, second), "new tenants are not routed")
        assert not is_routed(proxy, "lkc-zzzzzz")
        cluster.command_of("tenants", "delete", "second")
        proxy.until(lambda: not is_routed(proxy, second), "a deleted tenant is still routed")
        cluster.kill("controller-0")
        assert is_routed(proxy, first)
        for pid in proxy.children():
            os.kill(pid, signal.SIGKILL)
        proxy.until(lambda: proxy.said("process of the proxy died", 3), "deaths are not told")
        proxy.until(lambda: is_routed(proxy, first), "what was known is forgotten")
