"""`python -m bench.proxy.serve PORT BACKEND_PORT [CERTIFICATE]`: one worker of Tidelog's proxy with fixed routes.

Without a certificate TLS is passed through.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Mapping

import uvloop

from bench.proxy.names import DOMAIN, TENANT
from proxy.certificates import ChainFiles, server_context
from proxy.failures import FailureLog
from proxy.handshake_queue import HandshakeQueue
from proxy.host_addresses import HostAddresses
from proxy.limits import Counts, ProxyLimits
from proxy.listener import ProxyListener
from proxy.networks import NetworkRules
from proxy.opening import Reception
from proxy.relay import Room
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute
from proxy.server_tls import Places
from proxy.sockets import listen

LIMITS = ProxyLimits(new_per_second=1e6, new_burst=1e6, address_connections=100_000, tenant_connections=100_000)


class FixedRoutes:
    """A routing table that never changes."""

    def __init__(self, table: RoutingTable) -> None:
        self.current = table

    def on_change(self, callback: Callable[[RoutingTable, Mapping[str, None]], None]) -> None:
        """It never does."""


def make_reception(backend: int, certificate: str | None, limits: ProxyLimits = LIMITS) -> Reception:
    loop = asyncio.get_running_loop()
    brokers = {0: BrokerRoute(0, ("127.0.0.1", backend), "default", True)}
    return Reception(
        ready=loop,
        now=loop.time,
        routes=FixedRoutes(RoutingTable({TENANT: TenantRoute(TENANT, "default")}, brokers)),
        domain=DOMAIN,
        limits=limits,
        rules=NetworkRules(),
        client_context=server_context(ChainFiles(certificate)) if certificate else None,
        broker_context=None,
        header=True,
        addresses=Counts(),
        tenants=Counts(),
        failures=FailureLog(),
        handshake_queue=HandshakeQueue(loop),
        room=Room(),
        hosts=HostAddresses(),
        quick_places=Places(limits.quick),
    )


async def serve(port: int, backend: int, certificate: str | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    listener = ProxyListener(loop, listen(("127.0.0.1", port), 1)[0], make_reception(backend, certificate))
    listener.start()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    await stop.wait()
    listener.close()


if __name__ == "__main__":
    gc.set_threshold(50_000, 20, 50)
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
