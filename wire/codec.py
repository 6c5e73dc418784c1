"""Frames to messages and back through the schemas, with every length checked before it is believed."""

from __future__ import annotations

from typing import Any, NamedTuple

from common.errors import MalformedFrame


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation: int
    client_id: str | None


class UnsupportedRequest(MalformedFrame):
    """An API or version that the table lacks. `header` is complete (its client id may be None).

    For ApiVersions answer with `apis.api_versions_unsupported`, for all others close the connection.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"api {header.api_key} version {header.version}")
        self.header = header


def decode_request(frame: bytes | bytearray | memoryview) -> tuple[RequestHeader, Any]:
    """A frame's payload, without its length. Raises MalformedFrame and UnsupportedRequest.

    The message copies what it needs: the frame may be reused at once. Fields that the version lacks read as the
    schema's defaults. Uuids are `uuid.UUID`, None for the zero uuid.
    """
    raise NotImplementedError


def encode_response(api_key: int, version: int, correlation: int, message: Any) -> bytes:
    """A whole frame: length, header (v0 for ApiVersions), body."""
    raise NotImplementedError


def encode_request(message: Any, version: int, correlation: int, client_id: str) -> bytes:
    """A whole frame: length, header, body."""
    raise NotImplementedError


def decode_response(api_key: int, version: int, frame: bytes | bytearray | memoryview) -> tuple[int, Any]:
    """(correlation id, message) of a response's payload. Raises MalformedFrame."""
    raise NotImplementedError
