"""The controller's internal listener: frames in, the one table of what is served, frames out.

What brokers pass on for their clients is decoded and encoded in slices, in the lane of the client's principal.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError
from common.pacing import Pacer
from common.ports import Clock
from kraft.controller.acls import create_acls, delete_acls
from kraft.controller.api_keys import decide_create_api_key, decide_delete_api_key
from kraft.controller.attribution import actor_of, attributed
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.cells import decide_alter_cell, decide_describe_cells, knowing_tenants
from kraft.controller.configs import alter_configs, incremental_alter_configs
from kraft.controller.driver import ControllerDriver, Decide, not_controller
from kraft.controller.features import SUPPORTED_FEATURES, update_features
from kraft.controller.liveness import BrokerLiveness
from kraft.controller.metadata_fetch import MetadataFetch
from kraft.controller.partitions import alter_partition
from kraft.controller.policy import ControllerPolicy
from kraft.controller.producer_ids import decide_allocate_producer_ids
from kraft.controller.reassignment_requests import alter_reassignments, list_reassignments
from kraft.controller.requested_elections import elect_leaders
from kraft.controller.restored_topics import restore_topic
from kraft.controller.scram_credentials import alter_user_scram_credentials
from kraft.controller.tenant_duties import TenantDuties
from kraft.controller.tenants import (
    decide_alter_tenant,
    decide_create_tenant,
    decide_delete_tenant,
    move_tenant,
)
from kraft.controller.topics import create_partitions, create_topics, delete_topics
from kraft.records import METADATA_TOPIC
from wire.apis import ApiKey, Features, api_versions, api_versions_unsupported
from wire.codec import RequestHeader, UnsupportedRequest, decode_request, encode_response
from wire.connection import Connection
from wire.disposal import disposal
from wire.listeners import ListenerKind
from wire.messages import (
    AllocateProducerIdsResponse,
    AlterPartitionResponse,
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
    DescribeQuorumResponse,
    EnvelopeResponse,
    FetchResponse,
    FetchSnapshotResponse,
    TenantGroupsClearedResponse,
    TenantKeysReadyResponse,
    UnregisterBrokerResponse,
)
from wire.paced_codec import decode_request_work, encode_response_work

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
FORWARDED_BYTES_MAX = 512 << 20  # of an answer; the broker bounds what it sends on
_Handler = Callable[[RequestHeader, Any, int], Awaitable[Any]]


class ControllerRequests:
    """Handles the frames of all connections; each connection gets a number, by which its end is reported."""

    def __init__(
        self,
        driver: ControllerDriver,
        liveness: BrokerLiveness,
        fetch: MetadataFetch,
        policy: ControllerPolicy,
        tenants: TenantDuties,
        rng: random.Random,
        clock: Clock,
        voters: list[int],
        pacer: Pacer,
    ) -> None:
        self._pacer = pacer
        self._driver = driver
        self._liveness = liveness
        self._fetch = fetch
        self._policy = policy
        self._tenants = tenants
        self._random = rng
        self._clock = clock
        self._voters = voters
        self._connections = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._handlers: dict[int, tuple[_Handler, Any]] = {
            1: (self._metadata_fetch, FetchResponse),
            55: (self._describe_quorum, DescribeQuorumResponse),
            56: (self._alter_partition, AlterPartitionResponse),
            58: (self._envelope, EnvelopeResponse),
            59: (self._snapshot_fetch, FetchSnapshotResponse),
            62: (self._registration, BrokerRegistrationResponse),
            63: (self._heartbeat, BrokerHeartbeatResponse),
            64: (self._unregister, UnregisterBrokerResponse),
            67: (self._allocate_producer_ids, AllocateProducerIdsResponse),
            10014: (self._tenant_groups_cleared, TenantGroupsClearedResponse),
            10015: (self._tenant_keys_ready, TenantKeysReadyResponse),
        }

    def frame(self, connection: Connection, _buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        """A request; what is not served closes the connection."""
        if connection.state is None:
            self._connections += 1
            connection.state = self._connections
        number = connection.state
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
        if header.api_key not in self._handlers or not isinstance(number, int):
            raise MalformedFrame(f"api {header.api_key} is not the controller's")
        reply = connection.reply_later(end - at)
        task = asyncio.create_task(self._answer(reply, header, request, number), name=f"api-{header.api_key}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def closed(self, connection: Connection) -> None:
        if isinstance(connection.state, int):
            self._liveness.connection_closed(connection.state)

    async def stop(self) -> None:
        """End all requests in work."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, reply: Any, header: RequestHeader, request: Any, connection: int) -> None:
        handler, response = self._handlers[header.api_key]
        try:
            answer = await handler(header, request, connection)
        except ProtocolError as error:
            answer = response(error_code=int(error.code))
        except OutcomeUnknown:
            answer = response(error_code=int(ErrorCode.REQUEST_TIMED_OUT))
        except Exception:
            log.exception("a request failed", extra={"api": header.api_key})
            answer = response(error_code=int(ErrorCode.UNKNOWN_SERVER_ERROR))
        reply.send([encode_response(header.api_key, header.version, header.correlation, answer)])

    async def _registration(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return await self._liveness.register(request)

    async def _heartbeat(self, _header: RequestHeader, request: Any, connection: int) -> Any:
        return await self._liveness.heartbeat(request, connection)

    async def _unregister(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return await self._liveness.unregister(request)

    async def _alter_partition(self, header: RequestHeader, request: Any, _connection: int) -> Any:
        version, policy = header.version, self._policy
        return await self._driver.write(lambda image: alter_partition(image, request, version, policy))

    async def _allocate_producer_ids(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return await self._driver.write(lambda image: decide_allocate_producer_ids(image, request))

    async def _tenant_groups_cleared(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return self._tenants.groups_cleared(request)

    async def _tenant_keys_ready(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return self._tenants.keys_ready(request)

    async def _metadata_fetch(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return await self._fetch.fetch(request)

    async def _snapshot_fetch(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        return self._fetch.fetch_snapshot(request)

    async def _envelope(self, _header: RequestHeader, request: Any, _connection: int) -> Any:
        """A client's request that a broker passes on, whose principal it has authenticated and authorized."""
        lane = bytes(request.request_principal or b"")
        try:
            decoding = decode_request_work(memoryview(request.request_data))
            header, inner = await self._pacer.run(decoding, lane)
        except MalformedFrame as error:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The envelope holds no request.") from error
        actor = actor_of(request.request_principal or b"", request.client_host_address or b"")
        try:
            if header.api_key == 64:
                answer = await self._liveness.unregister(inner, actor)
            else:
                answer = await self._driver.write(attributed(self._decision(header, inner), actor))
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

    def _dispose(self, message: Any, lane: bytes) -> None:
        ending = disposal(message)
        if ending is not None:
            self._pacer.start(ending, lane)

    def _decision(self, header: RequestHeader, inner: Any) -> Decide:
        decisions = decisions_of(inner, self._policy, self._random, self._clock.wall_ms(), self._liveness.loads)
        decide = decisions.get(header.api_key)
        if decide is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Api {header.api_key} cannot be forwarded.")
        return decide

    async def _describe_quorum(self, _header: RequestHeader, _request: Any, _connection: int) -> Any:
        """From the active controller alone. How far the other voters are is the quorum's own affair: -1."""
        if not self._driver.is_active:
            raise not_controller()
        image = self._driver.image
        topic = DescribeQuorumResponse.TopicData
        replica = topic.PartitionData.ReplicaState
        voters = [
            replica(replica_id=v, log_end_offset=image.next_offset if v == image.leader_id else -1)
            for v in self._voters
        ]
        partition = topic.PartitionData(
            partition_index=0,
            error_code=0,
            leader_id=image.leader_id,
            leader_epoch=image.epoch,
            high_watermark=image.next_offset,
            current_voters=voters,
            observers=[],
        )
        return DescribeQuorumResponse(
            error_code=0, topics=[topic(topic_name=METADATA_TOPIC, partitions=[partition])], nodes=[]
        )


def decisions_of(
    inner: Any, policy: ControllerPolicy, rng: random.Random, now_ms: int, loads: BrokerLoads
) -> dict[int, Decide]:
    """How a client's request that a broker passes on is decided, by API."""
    return {
        19: lambda image: create_topics(image, inner, policy, rng),
        20: lambda image: delete_topics(image, inner, policy),
        30: lambda image: create_acls(image, inner, policy, rng),
        31: lambda image: delete_acls(image, inner),
        33: lambda image: alter_configs(image, inner, policy),
        37: lambda image: create_partitions(image, inner, policy, rng),
        43: lambda image: elect_leaders(image, inner, policy),
        44: lambda image: incremental_alter_configs(image, inner, policy),
        45: lambda image: alter_reassignments(image, inner, policy),
        46: lambda image: list_reassignments(image, inner),
        51: lambda image: alter_user_scram_credentials(image, inner, policy),
        57: lambda image: update_features(image, inner),
        10002: lambda image: restore_topic(image, inner, policy, rng),
        10004: lambda image: knowing_tenants(
            image, lambda living: decide_create_tenant(image, inner, policy, rng, now_ms, loads, living)
        ),
        10006: lambda image: decide_alter_tenant(image, inner),
        10007: lambda image: decide_delete_tenant(image, inner, policy),
        10008: lambda image: move_tenant(image, inner, policy, rng, loads),
        10009: lambda image: decide_create_api_key(image, inner, policy, rng, now_ms),
        10010: lambda image: decide_delete_api_key(image, inner),
        10012: lambda image: knowing_tenants(
            image, lambda living: decide_describe_cells(image, inner, policy, loads, living)
        ),
        10013: lambda image: decide_alter_cell(image, inner, policy),
    }
