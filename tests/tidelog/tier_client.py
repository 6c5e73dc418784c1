"""What commands of the tier ask, without processes: brokers that tell of the tier, and a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from object_store.store import ObjectInfo
from tests.object_store.memory_store import MemoryStore
from tiering.shard.description import BrokerTier, TierPage, encode
from tiering.upkeep.checking import State
from wire.messages import DescribeTierRequest, DescribeTierResponse

T = TypeVar("T")
BROKER = BrokerTier(broker_id=0, cluster_id="cluster-1")


class TierClient:
    """As an admin client of a cluster of one broker. To each question about a partition it answers with the next of
    `states`, and with the last of them ever after; one that is a text is an error."""

    def __init__(self, *states: State | str) -> None:
        self._states = states
        self.asked: list[int] = []

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": BROKER.broker_id, "is_fenced": False}]}

    def send(self, request: DescribeTierRequest, broker: int | None = None) -> DescribeTierResponse:
        if request.partition_index < 0:
            return _answer(encode(BROKER))
        state = self.state(len(self.asked))
        self.asked.append(request.partition_index)
        return _answer(b"", state) if isinstance(state, str) else _answer(_page(state))

    def state(self, number: int) -> State | str:
        """The answer to a question; the first one is number 0."""
        return self._states[min(number, len(self._states) - 1)]


def _answer(description: bytes, problem: str = "") -> DescribeTierResponse:
    code = -1 if problem else 0
    return DescribeTierResponse(
        throttle_time_ms=0, error_code=code, error_message=problem or None, description=description
    )


def _page(state: State) -> bytes:
    return encode(
        TierPage(
            known=state.known,
            topic="flights",
            tenant="",
            leader_epoch=1,
            broker_id=0,
            log_start_offset=state.log_start_offset,
            tier_end_offset=state.tier_end_offset,
            dropped_ms=state.dropped_ms,
            state_offset=state.state_offset,
            segments=list(state.segments),
            more=False,
        )
    )


class StoreHere:
    """As `BlockingStore`. `before` is called before each wait."""

    def __init__(self, store: MemoryStore, before: Callable[[], object] = lambda: None) -> None:
        self.store, self.name = store, "s3://bucket"
        self._before = before

    def wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._before()
        return asyncio.run(make())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        async def infos() -> list[ObjectInfo]:
            return [info async for info in self.store.list(prefix)]

        yield from self.wait(infos)
