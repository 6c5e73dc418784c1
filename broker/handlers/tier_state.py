"""TierState (10000): what partition leaders ask of the tier shards that this broker hosts. Internal listeners only."""

from __future__ import annotations

import asyncio

import msgspec

from broker.coordination.tier.coordinator import TierCoordinator
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from tiering.shard_protocol import DropPartition, ForgetPartition, RefusalCode, Refused, decode_request, encode
from wire.messages import TierStateRequest, TierStateResponse, raw_uuid

CALLS_AT_ONCE = 64
REPLY_BYTES_MAX = 16 << 20

Result = TierStateResponse.TierCallResult


class TierStateHandler:
    """Answers a batch call by call. When its replies grow too large the rest is told to come again."""

    def __init__(self, coordinator: TierCoordinator) -> None:
        self._coordinator = coordinator

    async def handle(self, context: RequestContext, request: TierStateRequest) -> TierStateResponse:
        results: list[Result] = []
        size = 0
        for begin in range(0, len(request.calls), CALLS_AT_ONCE):
            calls = request.calls[begin : begin + CALLS_AT_ONCE]
            if size >= REPLY_BYTES_MAX:
                code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
                results.extend(Result(error_code=code, reply=b"") for _ in calls)
                continue
            answered = await asyncio.gather(*(self._answer(call) for call in calls))
            size += sum(len(result.reply) for result in answered)
            results.extend(answered)
        return TierStateResponse(throttle_time_ms=0, calls=results)

    async def _answer(self, call: TierStateRequest.TierCall) -> Result:
        try:
            request = decode_request(call.request)
        except msgspec.MsgspecError:
            return Result(error_code=ErrorCode.INVALID_REQUEST, reply=b"")
        if isinstance(request, DropPartition | ForgetPartition):  # its host sees for itself what was deleted
            refused = Refused(RefusalCode.INVALID, "only the shard's host drops a partition")
            return Result(error_code=ErrorCode.NONE, reply=encode(refused))
        try:
            reply = await self._coordinator.call(raw_uuid(call.topic_id), call.partition_index, request)
        except ProtocolError as error:
            return Result(error_code=error.code, reply=b"")
        return Result(error_code=ErrorCode.NONE, reply=encode(reply))
