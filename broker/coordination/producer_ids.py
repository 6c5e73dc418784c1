"""Producer ids of this broker, from blocks that the controller allocates; the next block is fetched ahead.

Source: KIP-730 (AllocateProducerIds). A block is never allocated twice, so ids are unique across brokers and restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from wire.messages import AllocateProducerIdsRequest

logger = logging.getLogger(__name__)

PREFETCH_FROM = 0.9  # the used share of a block at which the next one is requested
CALL_TIMEOUT_S = 5.0


class ProducerIds:
    """Owns at most one task, which fetches a block."""

    def __init__(self, channel: ControllerCalls, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._next = self._end = 0
        self._prefetch_at = 0
        self._following: tuple[int, int] | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """A producer id that was never assigned before.

        Raises ProtocolError(COORDINATOR_LOAD_IN_PROGRESS), which clients retry, while there is no block.
        """
        if self._next >= self._end and self._following is None:
            await asyncio.wait([self._fetch()])
        if self._next >= self._end:
            if self._following is None:
                raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            (start, length), self._following = self._following, None
            self._next, self._end = start, start + length
            self._prefetch_at = start + int(length * PREFETCH_FROM)
        producer_id = self._next
        self._next += 1
        if self._next >= self._prefetch_at and self._following is None:
            self._fetch()
        return producer_id

    async def stop(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)

    def _fetch(self) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_block(), name="producer-ids")
        return self._fetching

    async def _fetch_block(self) -> None:
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
        try:
            response = await self._channel.call(request, 0, timeout_s=CALL_TIMEOUT_S)
        except (ControllerUnavailable, OutcomeUnknown, MalformedFrame) as error:
            logger.warning("no producer ids could be had", extra={"cause": str(error)})
            return
        if response.error_code != ErrorCode.NONE:
            logger.warning("producer ids are refused", extra={"error": response.error_code})
            return
        self._following = (response.producer_id_start, response.producer_id_len)
