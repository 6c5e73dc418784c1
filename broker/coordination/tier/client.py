"""Client of the tier shards, wherever they are hosted, for partition leaders.

Calls to one broker are batched: while a request is in flight the next calls gather, so that a broker that takes over
thousands of partitions sends few requests. Every request may be repeated (see `tiering.shard.shard_protocol`), so a
call is resent until it is answered or times out.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from broker.broker_link import BrokerLink
from broker.coordination.internal_topics import Ensure
from broker.coordination.placement import tier_partition_for
from broker.coordination.tier.coordinator import TierCoordinator
from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError, known_error
from common.lifecycle import duty, end_task
from kraft.image.metadata import MetadataImage
from kraft.links import Links
from kraft.topic_names import TIER_TOPIC
from tiering.bucket.segment import SegmentId
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import (
    Claim,
    ClaimReply,
    Describe,
    Description,
    Done,
    Mutation,
    Refused,
    Reply,
    Request,
    decode_reply,
    encode,
)
from tiering.shard.tier_records import decode_key
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import TierStateRequest, schema_uuid

TIER_STATE_VERSION = 0
_NOT_TAKEN = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
"""Errors that guarantee that nothing was written."""


class TierClientLimits(Struct, frozen=True):
    """Seconds. `waiting_max`: limit of unanswered calls."""

    timeout_s: float = 30.0
    connect_timeout_s: float = 1.0
    attempt_timeout_s: float = 10.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    calls_per_request_max: int = 500
    request_bytes_max: int = 4 << 20
    waiting_max: int = 100_000
    reads_again_max: int = 5


class _Call:
    """One call until it is answered, over any number of attempts."""

    __slots__ = ("_in_doubt", "body", "deadline", "future", "partition", "topic_id")

    def __init__(self, topic_id: bytes, partition: int, body: bytes, deadline: float) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.body = body
        self.deadline = deadline
        self.future: asyncio.Future[Reply | ErrorCode] = asyncio.get_running_loop().create_future()
        self._in_doubt = False  # whether an attempt may have taken effect without a reply

    def attempt_again(self) -> None:
        """Prepare for another request."""
        if self.future.done():
            self.future = asyncio.get_running_loop().create_future()

    def answer(self, outcome: Reply | ErrorCode) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

    def lost(self, *, sent: bool) -> None:
        """Its connection was lost, before or after it was sent."""
        self._in_doubt = self._in_doubt or sent
        self.answer(ErrorCode.NETWORK_EXCEPTION)

    def refused(self, code: ErrorCode) -> None:
        """Most errors leave open whether the request was written: a shard that was dropped may have appended it."""
        self._in_doubt = self._in_doubt or code not in _NOT_TAKEN

    def timed_out(self) -> None:
        self._in_doubt = True

    def failure(self) -> Exception:
        """The error for the caller if there is no reply."""
        if self._in_doubt:
            return OutcomeUnknown("the tier shard has not answered in time")
        return ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "the tier shard was not reached in time")


class _Courier:
    """Sends calls to one broker: one request at a time, in a task that ends when no calls are left."""

    def __init__(self, client: TierClient, broker_id: int) -> None:
        self.broker_id = broker_id
        self.waiting: deque[_Call] = deque()
        self.link = client.new_link()
        self.task: asyncio.Task[None] | None = None
        self._client = client

    def add(self, call: _Call) -> None:
        self.waiting.append(call)
        if self.task is None or self.task.done():
            name = duty(f"tier-calls-{self.broker_id}")
            self.task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def stop(self) -> None:
        await end_task(self.task)
        self.link.drop()

    async def _run(self) -> None:
        while self.waiting:
            calls = self._next_batch()
            if calls:
                await self._carry(calls)

    def _next_batch(self) -> list[_Call]:
        limits, calls, size = self._client.limits, list[_Call](), 0
        while self.waiting and len(calls) < limits.calls_per_request_max:
            call = self.waiting[0]
            if not call.future.done():
                if calls and size + len(call.body) > limits.request_bytes_max:
                    break
                calls.append(call)
                size += len(call.body)
            self.waiting.popleft()
        return calls

    async def _carry(self, calls: list[_Call]) -> None:
        request = TierStateRequest(
            broker_id=self._client.node_id,
            calls=[
                TierStateRequest.TierCall(
                    topic_id=schema_uuid(call.topic_id), partition_index=call.partition, request=call.body
                )
                for call in calls
            ],
        )
        sent = False
        try:
            link = await self.link.to(self.broker_id)
            sent = True
            response = await link.call(request, TIER_STATE_VERSION, self._client.limits.attempt_timeout_s)
            if len(response.calls) != len(calls):
                raise MalformedFrame("replies to other calls")
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
            self.link.drop()
            for call in calls:
                call.lost(sent=sent)
            return
        for call, result in zip(calls, response.calls, strict=True):
            call.answer(_outcome(result.error_code, result.reply))


def _outcome(code: int, reply: bytes) -> Reply | ErrorCode:
    if code != ErrorCode.NONE:
        return known_error(code)
    try:
        return decode_reply(reply)
    except msgspec.MsgspecError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class TierClient:
    """One per broker. Calls may come from any number of tasks. `stop` ends them."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        local: TierCoordinator,
        topics: Ensure,
        links: Links,
        listener_name: str,
        rng: random.Random,
        limits: TierClientLimits,
    ) -> None:
        self.node_id = node_id
        self.limits = limits
        self._image = image
        self._local = local
        self._topics = topics
        self._links = links
        self._listener_name = listener_name
        self._random = rng
        self._backoff = Backoff(limits.backoff_min_s, limits.backoff_max_s)
        self._couriers: dict[int, _Courier] = {}
        self._calls = 0
        self._stopped = False

    # for leaders -------------------------------------------------------------------------------------------

    async def claim(
        self, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused:
        """The partition's whole state, led by the claimer from now on. Raises as `call`.

        `claim.metadata_offset` is filled in from the local image.
        """
        claim = msgspec.structs.replace(claim, metadata_offset=self._image().offset)
        reply = await self.call(topic_id, partition, claim, timeout_s)
        if isinstance(reply, Refused):
            return reply
        first = reply.description if isinstance(reply, ClaimReply) else None
        return await self._read_all(topic_id, partition, first, timeout_s)

    async def change(self, view: PartitionTier, request: Mutation, timeout_s: float | None = None) -> Done | Refused:
        """Request a change of `view`'s partition, and update `view` to the shard's state. Raises as `call`.

        After OutcomeUnknown `view` may be outdated; repeat the request, or `refresh`. One change at a time per view.
        """
        reply = await self.call(view.topic_id, view.partition, request, timeout_s)
        if isinstance(reply, Done):
            if reply.after == view.state_offset:
                view.replay(reply.records)
            else:
                await self.refresh(view, timeout_s)
            return reply
        if isinstance(reply, Refused):
            return reply
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "the tier shard answered something else")

    async def refresh(self, view: PartitionTier, timeout_s: float | None = None) -> None:
        """Read `view` again from the shard. Raises as `call`."""
        view.become(await self.describe(view.topic_id, view.partition, timeout_s))

    async def describe(self, topic_id: bytes, partition: int, timeout_s: float | None = None) -> PartitionTier:
        """The partition's state, without a claim; empty if nothing is known of it. Raises as `call`."""
        return await self._read_all(topic_id, partition, None, timeout_s)

    async def _read_all(
        self, topic_id: bytes, partition: int, first: Description | None, timeout_s: float | None
    ) -> PartitionTier:
        """Read page by page; again if the state changed in between."""
        for _ in range(self.limits.reads_again_max):
            page = first or await self._page(topic_id, partition, None, timeout_s)
            first, begun_at = None, page.tier_state_offset
            tier = PartitionTier(topic_id, partition)
            tier.replay([page.partition] if page.partition is not None else [])
            tier.replay(page.segments)
            while page.more and page.segments:
                last = decode_key(page.segments[-1][0])
                after = last.segment if last is not None else None
                page = await self._page(topic_id, partition, after, timeout_s)
                tier.replay(page.segments)
                await asyncio.sleep(0)
            if page.tier_state_offset == begun_at:
                return tier
        raise ProtocolError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the tier's state changed during every attempt to read it"
        )

    async def _page(
        self, topic_id: bytes, partition: int, after: SegmentId | None, timeout_s: float | None
    ) -> Description:  # fmt: skip
        reply = await self.call(topic_id, partition, Describe(after), timeout_s)
        if not isinstance(reply, Description):
            raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "the tier shard answered something else")
        return reply

    # calls -------------------------------------------------------------------------------------------------

    async def call(self, topic_id: bytes, partition: int, request: Request, timeout_s: float | None = None) -> Reply:
        """The shard's reply, within `timeout_s` (default: the limit) over all attempts.

        Raises OutcomeUnknown after the timeout if the request may have taken effect; otherwise
        ProtocolError(REQUEST_TIMED_OUT). Raises ProtocolError(COORDINATOR_NOT_AVAILABLE) if too many calls wait or this
        client has stopped.
        """
        if self._stopped or self._calls >= self.limits.waiting_max:
            raise ProtocolError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many calls of the tier shards wait, or the client has stopped"
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.limits.timeout_s if timeout_s is None else timeout_s)
        call = _Call(topic_id, partition, encode(request), deadline)
        self._calls += 1
        try:
            return await self._call_until(call, request)
        finally:
            self._calls -= 1
            call.future.cancel()

    async def _call_until(self, call: _Call, request: Request) -> Reply:
        loop, retries = asyncio.get_running_loop(), Retries(self._backoff, self._random)
        while not self._stopped and (left_s := call.deadline - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    outcome = await self._attempt(call, request)
            except TimeoutError:
                call.timed_out()
                break
            if not isinstance(outcome, ErrorCode):
                return outcome
            if outcome is ErrorCode.UNKNOWN_SERVER_ERROR:
                break
            if outcome is ErrorCode.THROTTLING_QUOTA_EXCEEDED:  # the next request may have room for it at once
                continue
            await asyncio.sleep(min(retries.failed(), max(call.deadline - loop.time(), 0)))
        raise call.failure()

    async def _attempt(self, call: _Call, request: Request) -> Reply | ErrorCode:
        """One attempt at the shard's current host."""
        try:
            await self._topics.ensure(TIER_TOPIC)
            leader = self._leader_of(call)
            if leader == self.node_id:
                return await self._ask_here(call, request)
        except ProtocolError as error:
            return error.code
        if leader < 0:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        call.attempt_again()
        courier = self._couriers.get(leader)
        if courier is None:
            courier = self._couriers[leader] = _Courier(self, leader)
        courier.add(call)
        outcome = await call.future
        if isinstance(outcome, ErrorCode) and outcome is not ErrorCode.NETWORK_EXCEPTION:
            call.refused(outcome)
        return outcome

    async def _ask_here(self, call: _Call, request: Request) -> Reply:
        try:
            return await self._local.call(call.topic_id, call.partition, request)
        except ProtocolError as error:
            call.refused(error.code)
            raise

    def _leader_of(self, call: _Call) -> int:
        """The broker that leads the shard's partition; -1 if there is none."""
        topic = self._image().topics.get(TIER_TOPIC)
        if topic is None or not topic.partitions:
            return -1
        return topic.partitions[tier_partition_for(call.topic_id, call.partition, len(topic.partitions))].leader

    def broker_left(self, broker_id: int) -> None:
        """See `brokers_left`. Its calls are attempted again, at the shards' hosts of then."""
        courier = self._couriers.get(broker_id)
        if courier is not None:
            courier.link.drop()

    def new_link(self) -> BrokerLink:
        return BrokerLink(self._links, self._image, self._listener_name, self.limits.connect_timeout_s)

    async def stop(self) -> None:
        """End all calls, with ProtocolError or OutcomeUnknown."""
        self._stopped = True
        for courier in self._couriers.values():
            await courier.stop()
            for call in courier.waiting:
                call.answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
