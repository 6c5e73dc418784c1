"""Passing a client's request on to the active controller, and waiting until the local image shows the result."""

from __future__ import annotations

from typing import Any, Protocol

from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from kraft.controller_channel import ControllerChannel, ControllerUnavailable
from wire.codec import decode_response, encode_request
from wire.messages import EnvelopeRequest

ENVELOPE_VERSION = 0
LENGTH_BYTES = 4


class Waiter(Protocol):
    """What it needs of `kraft.observer.MetadataObserver`."""

    async def wait_for(self, offset: int, timeout_s: float) -> bool: ...


class Forwarder:
    """Forwards CreateTopics, DeleteTopics, CreatePartitions, AlterConfigs, IncrementalAlterConfigs, UpdateFeatures
    and UnregisterBroker. The broker has authenticated and authorized its client before."""

    def __init__(self, channel: ControllerChannel, observer: Waiter, image_wait_s: float = 5.0) -> None:
        self._channel = channel
        self._observer = observer
        self._image_wait_s = image_wait_s

    async def forward(
        self,
        request: Any,
        version: int,
        *,
        client_id: str,
        principal: bytes,
        client_address: bytes,
        timeout_s: float,
    ) -> Any:
        """The controller's response to `request` (a message of `wire.messages`).

        Returns once this node's image holds the result, or after `image_wait_s`. Raises ProtocolError:
        REQUEST_TIMED_OUT when the outcome is not known, NOT_CONTROLLER when no controller could be reached, and
        what the controller says of the envelope itself.
        """
        frame = encode_request(request, version, 0, client_id)
        envelope = EnvelopeRequest(
            request_data=frame[LENGTH_BYTES:], request_principal=principal, client_host_address=client_address
        )
        try:
            answer = await self._channel.call(envelope, ENVELOPE_VERSION, timeout_s=timeout_s, repeatable=False)
        except ControllerUnavailable as error:
            raise ProtocolError(ErrorCode.NOT_CONTROLLER, "No active controller can be reached.") from error
        except OutcomeUnknown as error:
            message = "The controller did not answer; the request may have taken effect."
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error
        if answer.error_code:
            raise ProtocolError(ErrorCode(answer.error_code), "The controller did not take the request.")
        _correlation, response = decode_response(request.API_KEY, version, bytes(answer.response_data))
        await self._observer.wait_for(answer.committed_offset, self._image_wait_s)
        return response
