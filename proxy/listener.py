"""A worker's listener: accepts connections, closes slow and idle ones, and drains at the end.

One timer serves all connections: it counts for each how many sweeps nothing has moved. Each turn of the loop accepts
one connection; the rest wait in the kernel's backlog.
"""

from __future__ import annotations

import asyncio
import heapq
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from common.ports import Address
from common.token_bucket import TokenBucket
from proxy.failures import Cause
from proxy.networks import counted_address
from proxy.opening import Opening, Reception
from proxy.relay import Relay
from proxy.routing import RoutingTable, TenantRoute
from proxy.sockets import (
    LISTEN_BACKLOG,
    Connection,
    OutOfFiles,
    RawSocket,
    accept,
    bound_address,
    peer_host,
    prepare_listener,
    refuse,
)

SWEEP_S = 0.25  # between sweeps of openings
QUIET_S = 5.0  # between sweeps of relays
FILES_PAUSE_S = 0.1
DRAIN_STEP_S = 0.1


@dataclass(slots=True)
class Tally:
    """Counts since the listener's start; the bytes are those of ended relays."""

    accepted: int = 0
    opened: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    file_pauses: int = 0
    full_pauses: int = 0
    rate_pauses: int = 0


class ProxyListener:
    """Accepts on one socket. The parent process keeps the port open for the next worker."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: RawSocket, reception: Reception, quiet_s: float = QUIET_S
    ) -> None:
        self._loop, self._sock, self._reception, self._quiet_s = loop, sock, reception, quiet_s
        self._openings: dict[Opening, None] = {}
        self._relays: dict[Relay, None] = {}
        limits = reception.limits
        self._bucket = TokenBucket(limits.new_per_second, max(1.0, limits.new_burst), loop.time())
        self._accepting = self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_due = loop.time() + quiet_s
        self.tally = Tally()
        reception.bound = bound_address(sock)
        reception.routes.on_change(self._routes_changed)

    @property
    def relays(self) -> int:
        return len(self._relays)

    @property
    def openings(self) -> int:
        return len(self._openings)

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes from clients to brokers, and from brokers to clients."""
        up = self.tally.up_bytes + sum(relay.up.moved for relay in self._relays)
        return up, self.tally.down_bytes + sum(relay.down.moved for relay in self._relays)

    def start(self) -> None:
        self._reception.deferral_s = prepare_listener(self._sock, self._reception.limits.opening_timeout_s)
        self._resume()
        self._sweep()

    def stop_accepting(self) -> None:
        """Stop for good. The next worker accepts the connections in the socket's backlog."""
        self._stopped = True
        self._pause()
        self._sock.close()

    async def drain(self) -> None:
        """Stop accepting, then close all connections evenly over `drain_s`, quiet ones first, so that clients do not
        reconnect all at once."""
        self._take_waiting()
        self.stop_accepting()
        end = self._loop.time() + self._reception.limits.drain_s
        while (self._relays or self._openings) and (left := end - self._loop.time()) > 0:
            await asyncio.sleep(min(DRAIN_STEP_S, left))
            share = 1 + int(len(self._relays) * DRAIN_STEP_S / max(left, DRAIN_STEP_S))
            for relay in heapq.nlargest(share, self._relays, key=operator.attrgetter("quiet")):
                if relay.quiet:
                    relay.close()
            for relay in self._relays:
                relay.quiet += 1
        self.close()

    def close(self) -> None:
        """Close all connections at once. Idempotent."""
        if not self._stopped:
            self.stop_accepting()
        for opening in list(self._openings):
            opening.close(Cause.STOPPING)
        for relay in list(self._relays):
            relay.close()
        if self._timer is not None:
            self._timer.cancel()

    # Accepting.

    def _resume(self) -> None:
        if not self._accepting and not self._stopped:
            self._accepting = True
            self._reception.ready.add_reader(self._sock.fileno(), self._accept)

    def _pause(self, seconds: float | None = None) -> None:
        """Pause accepting for `seconds`, or until a connection ends."""
        if self._accepting:
            self._accepting = False
            self._reception.ready.remove_reader(self._sock.fileno())
        if seconds is not None:
            self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        reception, limits = self._reception, self._reception.limits
        if len(self._relays) >= limits.connections or (
            len(self._openings) >= limits.opening and not self._make_room(limits.eviction_age_s)
        ):
            self.tally.full_pauses += 1
            self._pause()
            return
        wait = self._bucket.take(1, self._loop.time())
        if wait:
            self.tally.rate_pauses += 1
            self._pause(wait)
            return
        try:
            accepted = accept(self._sock)
        except OutOfFiles:  # a level-triggered listener would spin on it
            self.tally.file_pauses += 1
            self._pause(FILES_PAUSE_S)
            return
        if accepted is None:
            return
        self.tally.accepted += 1
        client, peer = accepted
        counted = counted_address(peer[0])
        problem = reception.address_problem(peer[0], counted)
        if problem is not None:
            reception.failures.note(problem, counted, self._loop.time())
            refuse(client, b"", reception.room.whole)
            return
        self._open(client, peer, counted)

    def _take_waiting(self) -> None:
        """Accept the backlog within the limits, because closing the socket's last copy would reset these clients."""
        for _ in range(LISTEN_BACKLOG):
            accepted = self.tally.accepted
            if not self._accepting:
                return
            self._accept()
            if self.tally.accepted == accepted:
                return

    def _open(self, client: Connection, peer: Address, counted: str) -> None:
        opening = Opening(self._reception, client, peer, counted, self._done)
        self._openings[opening] = None
        opening.look()

    def _make_room(self, patience_s: float) -> bool:
        """Evict the oldest opening. False when even that one is younger than `patience_s`."""
        oldest = next(iter(self._openings))
        if self._loop.time() - oldest.since < patience_s:
            return False
        oldest.close(Cause.EVICTED)
        return True

    def _done(self, opening: Opening, relay: Relay | None) -> None:
        del self._openings[opening]
        if relay is not None:
            self.tally.opened += 1
            self._relays[relay] = None
            relay.on_close = self._ended
        self._resume()

    def _ended(self, relay: Relay) -> None:
        del self._relays[relay]
        self.tally.up_bytes += relay.up.moved
        self.tally.down_bytes += relay.down.moved
        self._reception.tenants.leave(relay.tenant)
        self._reception.addresses.leave(relay.address)
        self._resume()

    # Sweeping.

    def _sweep(self) -> None:
        now, limits = self._loop.time(), self._reception.limits
        for opening in list(self._openings):
            if now - opening.since > limits.opening_timeout_s:
                opening.close(Cause.TIMEOUT)
            elif opening.attempt_since is not None and now - opening.attempt_since > limits.connect_timeout_s:
                opening.abandon_attempt("no answer")
        avoided = self._reception.avoided
        for address in [address for address, until in avoided.items() if until < now]:
            del avoided[address]
        if now >= self._quiet_due:
            self._quiet_due = now + self._quiet_s
            self._sweep_relays(limits.idle_s / self._quiet_s, limits.half_closed_s / self._quiet_s)
        self._resume()
        self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep_relays(self, idle: float, half_closed: float) -> None:
        for relay in list(self._relays):
            relay.quiet += 1
            if relay.quiet > (half_closed if relay.is_half_closed else idle):
                relay.close()

    def _routes_changed(self, table: RoutingTable, restricted: Mapping[str, None]) -> None:
        """Close the connections of deleted tenants, and of addresses that their tenant now denies."""
        if not restricted:
            return
        for opening in list(self._openings):
            if opening.tenant is not None and opening.tenant in restricted:
                tenant = table.tenants.get(opening.tenant)
                if tenant is None:
                    opening.close(Cause.GONE)
                elif not tenant.rules.permits(opening.peer[0]):
                    opening.close(Cause.TENANT_DENIED)
        for relay in list(self._relays):
            if relay.tenant in restricted:
                tenant = table.tenants.get(relay.tenant)
                if tenant is None or not _permits(tenant, relay.client):
                    relay.close()


def _permits(tenant: TenantRoute, client: Connection) -> bool:
    """Whether the tenant's rules admit the client. Connections do not store their address, so the kernel is asked."""
    host = peer_host(client)
    return host is None or tenant.rules.permits(host)  # None: it has ended already
