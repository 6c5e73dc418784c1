"""The controller's internal listener: receives frames, dispatches them by a table, and responds.

Requests that brokers forward are decoded and encoded in slices, in the lane of the client's principal.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError
from common.lifecycle import end_tasks
from common.pacing import Pacer
from common.ports import Clock
from kraft.controller.attribution import actor_of, attributed
from kraft.controller.balance_status import BalanceStatus
from kraft.controller.decisions import Circumstances, decision_of
from kraft.controller.driver import ControllerDriver, Decide, not_controller
from kraft.controller.health_duties import HealthDuties
from kraft.controller.liveness import BrokerLiveness
from kraft.controller.metadata_fetch import MetadataFetch
from kraft.controller.mutation_quotas import UNBOUNDED, MutationQuota, MutationQuotas
from kraft.controller.partitions import alter_partition
from kraft.controller.policy import ControllerPolicy
from kraft.controller.producer_ids import decide_allocate_producer_ids
from kraft.controller.quorum_description import QuorumView, describe_quorum
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.tenant_duties import TenantDuties
from kraft.controller.usage_rates import Verdict
from kraft.features import SUPPORTED_FEATURES
from kraft.health.slowness import AckDelay
from wire.apis import APIS, ApiKey, Features, api_versions, api_versions_unsupported
from wire.codec import RequestHeader, UnsupportedRequest, decode_request, encode_response
from wire.connection import Connection
from wire.disposal import disposal
from wire.listeners import ListenerKind
from wire.messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EnvelopeRequest,
    EnvelopeResponse,
    Message,
    ReportUsageRequest,
    ReportUsageResponse,
    changed,
)
from wire.paced_codec import decode_request_work, encode_response_work

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
NODE_PRINCIPAL = "User:NODE"  # of what a broker asks for itself
FORWARDED_BYTES_MAX = 512 << 20  # of an answer; the broker bounds what it sends on


class ControllerRequests:
    """Handles the frames of all connections. Each connection has a number, by which its end is reported."""

    def __init__(
        self,
        driver: ControllerDriver,
        liveness: BrokerLiveness,
        fetch: MetadataFetch,
        policy: ControllerPolicy,
        tenants: TenantDuties,
        usage: ReportedUsage,
        balance: BalanceStatus,
        health: HealthDuties,
        quotas: QuotaCoordinator,
        rng: random.Random,
        clock: Clock,
        quorum_view: Callable[[], QuorumView],
        pacer: Pacer,
    ) -> None:
        self._pacer = pacer
        self._driver = driver
        self._liveness = liveness
        self._fetch = fetch
        self._policy = policy
        self._mutations = MutationQuotas(policy)
        self._tenants = tenants
        self._usage = usage
        self._balance = balance
        self._health = health
        self._quotas = quotas
        self._random = rng
        self._clock = clock
        self._quorum_view = quorum_view
        self._connections = 0
        self._numbers: dict[Connection, int] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def frame(self, connection: Connection, _buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        """Handle a request; one that is not served closes the connection."""
        number = self._numbers.get(connection)
        if number is None:
            self._connections += 1
            number = self._numbers[connection] = self._connections
        try:
            header, request = decode_request(view[at:end])
        except UnsupportedRequest as error:
            if error.header.api_key != ApiKey.API_VERSIONS:
                raise
            connection.reply([api_versions_unsupported(error.header.correlation)])
            return
        if header.api_key == ApiKey.API_VERSIONS:
            image = self._driver.image
            answer = api_versions(
                ListenerKind.INTERNAL, header.version, Features(image.epoch, image.features, SUPPORTED_FEATURES)
            )
            connection.reply([encode_response(ApiKey.API_VERSIONS, header.version, header.correlation, answer)])
            return
        if header.api_key not in ANSWERS:
            raise MalformedFrame(f"api {header.api_key} is not the controller's")
        reply = connection.reply_later(end - at)
        task = asyncio.create_task(self._answer(reply, header, request, number), name=f"api-{header.api_key}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def closed(self, connection: Connection) -> None:
        number = self._numbers.pop(connection, None)
        if number is not None:
            self._liveness.connection_closed(number)

    async def stop(self) -> None:
        """Cancel all requests in progress."""
        await end_tasks(self._tasks)

    async def _answer(self, reply: Any, header: RequestHeader, request: Message, connection: int) -> None:
        response = APIS[header.api_key].response
        try:
            answering = ANSWERS[header.api_key](self, request, header.version, connection)
            answer = await answering if isinstance(answering, Awaitable) else answering
        except ProtocolError as error:
            answer = response(error_code=int(error.code))
        except OutcomeUnknown:
            answer = response(error_code=int(ErrorCode.REQUEST_TIMED_OUT))
        except Exception:
            log.exception("a request failed", extra={"api": header.api_key})
            answer = response(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        reply.send([encode_response(header.api_key, header.version, header.correlation, answer)])

    async def _reported(self, request: ReportUsageRequest) -> ReportUsageResponse:
        """Raises NOT_CONTROLLER, and as `ReportedUsage.take`."""
        if not self._driver.is_active:
            raise not_controller()
        image, now = self._driver.image, self._clock.monotonic()
        verdict = self._usage.take(image, request, now)
        if request.is_last:
            delays = {
                row.follower_id: AckDelay(row.samples, row.p99_us / 1000)
                for row in request.ack_delays
                if row.follower_id in image.brokers
            }
            self._health.reported(request.broker_id, delays)
        if verdict is Verdict.REPEATED:
            return self._quotas.kept(image)
        answer = await self._pacer.run(self._quotas.answer(image, request, now), "shares", own=True)
        if not self._driver.is_active:  # what it knew was forgotten in between
            raise not_controller()
        return answer

    async def _forwarded(self, request: EnvelopeRequest) -> EnvelopeResponse:
        """A client's request forwarded by a broker, which has authenticated and authorized the principal."""
        lane = bytes(request.request_principal or b"")
        try:
            decoding = decode_request_work(memoryview(request.request_data))
            header, inner = await self._pacer.run(decoding, lane)
        except MalformedFrame as error:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The envelope holds no request.") from error
        actor = actor_of(request.request_principal or b"", request.client_host_address or b"")
        try:
            if header.api_key == ApiKey.UNREGISTER_BROKER:
                answer = await self._liveness.unregister(inner, actor)
            else:
                mutations = self._mutations_of(header, request.request_principal or b"")
                answer = await self._driver.write(attributed(self._decision(header, inner, mutations), actor))
                if mutations.throttle_ms:
                    answer = changed(answer, throttle_time_ms=mutations.throttle_ms)
        finally:
            self._dispose(inner, lane)
        committed_offset = self._driver.image.offset
        encoding = encode_response_work(
            header.api_key, header.version, header.correlation, answer, FORWARDED_BYTES_MAX
        )  # fmt: skip
        framed = b"".join(await self._pacer.run(encoding, lane))
        self._dispose(answer, lane)
        return EnvelopeResponse(
            error_code=0, response_data=framed[LENGTH_BYTES:], committed_offset=committed_offset
        )  # fmt: skip

    def _dispose(self, message: Message, lane: bytes) -> None:
        ending = disposal(message)
        if ending is not None:
            self._pacer.start(ending, lane)

    def _mutations_of(self, header: RequestHeader, principal: bytes) -> MutationQuota:
        """Brokers' own requests are unbounded."""
        client, now = principal.decode(errors="replace"), self._clock.monotonic()
        if client == NODE_PRINCIPAL:
            return UNBOUNDED
        return self._mutations.of(
            self._driver.image, client, header.client_id or "", header.api_key, header.version, now
        )  # fmt: skip

    def _decision(self, header: RequestHeader, inner: Message, mutations: MutationQuota) -> Decide:
        clock = self._clock
        at = Circumstances(
            self._policy,
            self._random,
            clock.wall_ms(),
            self._liveness.loads,
            self._usage,
            self._balance,
            clock.monotonic(),
            self._health,
            self._quotas,
            mutations,
        )
        decide = decision_of(header.api_key, inner, at)
        if decide is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Api {header.api_key} cannot be forwarded.")
        return decide

    def _quorum_state(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """From the active controller only. Raises NOT_CONTROLLER."""
        if not self._driver.is_active:
            raise not_controller()
        return describe_quorum(self._quorum_view(), request)


ANSWERS: Mapping[int, Callable[[ControllerRequests, Any, int, int], Awaitable[Message] | Message]] = {
    ApiKey.FETCH: lambda own, request, version, connection: own._fetch.fetch(request),
    ApiKey.DESCRIBE_QUORUM: lambda own, request, version, connection: own._quorum_state(request),
    ApiKey.ALTER_PARTITION: lambda own, request, version, connection: own._driver.write(
        lambda image: alter_partition(image, request, version, own._policy)
    ),
    ApiKey.ENVELOPE: lambda own, request, version, connection: own._pacer.metered(own._forwarded(request)),
    ApiKey.FETCH_SNAPSHOT: lambda own, request, version, connection: own._fetch.fetch_snapshot(request),
    ApiKey.BROKER_REGISTRATION: lambda own, request, version, connection: own._liveness.register(request),
    ApiKey.BROKER_HEARTBEAT: lambda own, request, version, connection: own._liveness.heartbeat(request, connection),
    ApiKey.UNREGISTER_BROKER: lambda own, request, version, connection: own._liveness.unregister(request),
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda own, request, version, connection: own._driver.write(
        lambda image: decide_allocate_producer_ids(image, request)
    ),
    ApiKey.TENANT_GROUPS_CLEARED: lambda own, request, version, connection: own._tenants.groups_cleared(request),
    ApiKey.TENANT_KEYS_READY: lambda own, request, version, connection: own._tenants.keys_ready(request),
    ApiKey.REPORT_USAGE: lambda own, request, version, connection: own._reported(request),
}
"""All APIs on the controller's own listener."""
