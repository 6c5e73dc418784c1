"""A request chain that lets everything pass, an operator listener without tenants or quotas; and idempotent producers
without transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.config import BrokerConfig
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.transactions.coordinator import TransactionCoordinator
from broker.data_plane import DataPlane, Machinery
from broker.handlers.transactions import TransactionHandlers
from broker.requests.context import RequestChain, RequestContext
from broker.security.session import ClientSession
from common.pacing import Work
from kraft.image.metadata import MetadataImage


class KeepNames:
    def inward(self, context: RequestContext, request: Any) -> Any:
        return request

    def inward_work(self, context: RequestContext, request: Any) -> Work[Any]:
        return request
        yield

    def outward(self, context: RequestContext, response: Any) -> Any:
        return response

    def outward_work(self, context: RequestContext, response: Any) -> Work[Any]:
        return response
        yield


class NoQuota:
    def charge(
        self, session: ClientSession, client_id: bytes | str | None, api_key: int, in_bytes: int, out_bytes: int
    ) -> int:
        return 0

    def refuses_ms(self, session: ClientSession, client_id: bytes | str | None, out_bytes: int) -> int:
        return 0

    def fetch_bytes_max(self, session: ClientSession, client_id: bytes | str | None, bytes_max: int) -> int:
        return bytes_max


def open_chain() -> RequestChain:
    return RequestChain(KeepNames(), NoQuota())


def idempotence(
    plane: DataPlane, machinery: Machinery, config: BrokerConfig, image: Callable[[], MetadataImage]
) -> TransactionHandlers:
    """Handlers of a broker that coordinates no transaction."""
    runtime = CoordinatorRuntime(machinery.ports.clock, RuntimeConfig(), machinery.pacer)
    coordinator = TransactionCoordinator(
        runtime=runtime, producer_ids=plane.producer_ids, config=config.transactions, image=image, version=lambda: 0
    )
    return TransactionHandlers(coordinator, plane.producer_ids, image, lambda _: 0, _nothing, lambda _: None)


async def _nothing() -> None: ...
