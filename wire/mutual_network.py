"""The network of the quorum's voters, where both sides of every connection show a certificate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.ports import Address, Listener, Network, Socket
from wire.failure_log import FailureLog
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.opening import Openings
from wire.tls import SecuredNetwork, TlsContexts

VOTERS = "QUORUM"  # how the log calls their listener

_log = logging.getLogger(__name__)


class MutualNetwork:
    """As `SecuredNetwork`; its listeners also pass on only peers that have shown a node's certificate."""

    def __init__(self, network: Network, contexts: TlsContexts) -> None:
        self._network = network
        self._contexts = contexts
        self.connect = SecuredNetwork(network, contexts).connect

    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> Listener:
        config = ListenerConfig(VOTERS, address, None, ListenerKind.INTERNAL, SecurityProtocol.SSL, self._contexts)
        return _MutualListener(self._network, config, accepted)


class _MutualListener:
    def __init__(self, network: Network, config: ListenerConfig, accepted: Callable[[Socket], None]) -> None:
        self._accepted = accepted
        self._failures = FailureLog(_log, "connection refused", asyncio.get_running_loop().time)
        self._openings = Openings(self._opened, self._failed, self._hold)
        self._inner = network.listen(config.address, lambda socket: self._openings.begin(socket, config))
        self.pause, self.resume = self._inner.pause, self._inner.resume

    @property
    def address(self) -> Address:
        return self._inner.address

    def _opened(self, socket: Socket, _: PeerIdentity) -> None:
        self._accepted(socket)

    def _failed(self, peer: Address, cause: str, detail: str) -> None:
        self._failures.report(cause, peer[0], listener=VOTERS, detail=detail)

    def _hold(self, is_full: bool) -> None:
        if is_full:
            self._inner.pause()
        else:
            self._inner.resume()

    def close(self) -> None:
        self._inner.close()
        self._openings.close()
