"""Requests that the controller decides: forwarded in an Envelope, answered when the local image has the result.

So a client that creates a topic through this broker finds it here, and this broker already leads its partitions.
Source: KIP-590 (Envelope).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from broker.requests.context import RequestContext
from broker.requests.failures import failing
from broker.security.session import NODE_PRINCIPAL
from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown, ProtocolError, known_error
from common.pacing import Pacer, at_once
from common.ports import Clock
from kraft.image.metadata import MetadataImage
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from wire.apis import APIS, ApiKey
from wire.codec import encode_request
from wire.messages import EnvelopeRequest, Message, Request
from wire.paced_codec import decode_response_work, encode_request_work, is_light

R = TypeVar("R")

LENGTH_BYTES = 4
FORWARDED_BYTES_MAX = 8 << 20  # copied in one go, here and by the controller: some milliseconds
AROUND_BYTES = 64 << 10  # of an envelope: more than what names the client and the node
ENVELOPE_VERSION = 0
# not the newest, because responses of version 2 have no results
_VERSIONS: Mapping[int, int] = {ApiKey.UPDATE_FEATURES: 1}
_LENIENT: Mapping[int, int] = {ApiKey.CREATE_TOPICS: 5, ApiKey.DELETE_TOPICS: 4, ApiKey.CREATE_PARTITIONS: 2}
"""The last versions whose clients do not know THROTTLING_QUOTA_EXCEEDED. Their requests travel in these versions, from
which the controller learns it."""
LOCAL_CLIENT = "tidelog-broker"


class Roles(Protocol):
    """The roles of this broker's replicas: `broker.partitions.role_changes.RoleChanges`."""

    async def wait_for(self, offset: int, timeout_s: float) -> None: ...


class Observer(Protocol):
    """The local image: `kraft.observers.observer.MetadataObserver`."""

    @property
    def image(self) -> MetadataImage: ...

    async def wait_for(self, offset: int, timeout_s: float) -> bool: ...


class ForwardLimits(Struct, frozen=True):
    """Timeouts in seconds. A client's own timeout applies within these bounds. `request_bytes_max`: the longest request
    that is forwarded. The controller would close the channel that all clients' requests share for one that is longer
    than its frames."""

    timeout_min_s: float = 1.0
    timeout_max_s: float = 60.0
    timeout_s: float = 30.0
    roles_s: float = 1.0  # how long a response waits for this broker's replicas to take their roles
    request_bytes_max: int = FORWARDED_BYTES_MAX

    @classmethod
    def within(cls, frame_bytes_max: int) -> ForwardLimits:
        """Where nodes take frames of this length."""
        return cls(
            request_bytes_max=min(FORWARDED_BYTES_MAX, max(frame_bytes_max - AROUND_BYTES, frame_bytes_max // 2))
        )


class Forwarder:
    """Sends requests to the active controller on behalf of clients, and of this broker itself."""

    def __init__(
        self,
        channel: ControllerCalls,
        observer: Observer,
        clock: Clock,
        limits: ForwardLimits,
        pacer: Pacer | None = None,
        roles: Roles | None = None,
    ) -> None:
        self._pacer = pacer
        self._roles = roles
        self.channel = channel
        self._observer = observer
        self._clock = clock
        self._limits = limits
        self._correlation = 0

    @property
    def image(self) -> MetadataImage:
        return self._observer.image

    async def serve(self, context: RequestContext, request: Request[R]) -> R:
        """Handler of the APIs that only the controller decides. Its response serves clients of all versions."""
        try:
            return await self.forward(context, request)
        except ProtocolError as error:
            response: R = await context.paced(failing(request, error))
            return response

    async def forward(self, context: RequestContext | None, request: Request[R]) -> R:
        """The controller's response to `request`, which travels in its newest version, or an old one.

        `context` None: the broker asks.

        Raises ProtocolError: NOT_CONTROLLER when none was reached, REQUEST_TIMED_OUT when the outcome is not known,
        POLICY_VIOLATION for a request that is too long.
        """
        limits = self._limits
        version = _version_of(context, request)
        timeout_ms = None if context is None else getattr(request, "timeout_ms", None)
        asked_s = limits.timeout_s if timeout_ms is None else timeout_ms / 1000
        timeout_s = min(max(asked_s, limits.timeout_min_s), limits.timeout_max_s)
        deadline = self._clock.monotonic() + timeout_s
        frame = await self._encoded(context, request, version)
        principal = NODE_PRINCIPAL if context is None else context.principal
        host = "" if context is None else context.client_host
        envelope = EnvelopeRequest(
            request_data=frame[LENGTH_BYTES:], request_principal=principal.encode(), client_host_address=host.encode()
        )
        try:
            answer = await self.channel.call(envelope, ENVELOPE_VERSION, timeout_s=timeout_s, repeatable=False)
        except ControllerUnavailable as error:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER, "no controller could be reached") from error
        except OutcomeUnknown as error:
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer in time") from error
        if answer.error_code:
            raise ProtocolError(known_error(answer.error_code), "the controller rejected the request")
        lane = _lane_of(context)
        try:
            decoding = decode_response_work(request.API_KEY, version, memoryview(answer.response_data or b""))
            response: R = at_once(decoding) if self._pacer is None else await self._pacer.run(decoding, lane)
        except MalformedFrame as error:
            raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's response is malformed") from error
        if answer.committed_offset >= 0:
            await self._observer.wait_for(answer.committed_offset, max(deadline - self._clock.monotonic(), 0.0))
            if self._roles is not None:
                await self._roles.wait_for(answer.committed_offset, limits.roles_s)
        return response

    async def _encoded(self, context: RequestContext | None, request: Message, version: int) -> bytes:
        self._correlation = correlation = (self._correlation + 1) & 0x7FFFFFFF
        client_id = LOCAL_CLIENT if context is None else context.client_id or ""
        if self._pacer is None or is_light(request, version):
            parts = [encode_request(request, version, correlation, client_id)]
        else:
            encoding = encode_request_work(request, version, correlation, client_id)
            parts = await self._pacer.run(encoding, _lane_of(context))
        size, most = sum(map(len, parts)), self._limits.request_bytes_max
        if size > most:
            message = f"the request has {size} bytes, more than the {most} that are forwarded"
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
        return b"".join(parts)


def _version_of(context: RequestContext | None, request: Message) -> int:
    lenient = _LENIENT.get(request.API_KEY, -1)
    if context is not None and context.api_key == request.API_KEY and context.api_version <= lenient:
        return lenient
    return _VERSIONS.get(request.API_KEY, APIS[request.API_KEY].max_version)


def _lane_of(context: RequestContext | None) -> Hashable:
    return None if context is None else context.lane
