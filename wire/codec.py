"""Frames to messages and back through the schemas; every length is checked before use."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from common.errors import ErrorCode, MalformedFrame
from wire.apis import APIS, ApiKey
from wire.decoder import ELEMENTS_MAX, decode_body
from wire.messages import Message
from wire.primitives import INT32, request_head, skip_tags

METADATA_CLUSTER_OPERATIONS_UNTIL = 10
WIDE_NULL = Struct(">i")

_UNSUPPORTED_VERSION = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2)
_API_VERSIONS, _METADATA = int(ApiKey.API_VERSIONS), int(ApiKey.METADATA)
_ENCODE_BYTES_FIRST = 512
_FRAMED_HEAD = Struct(">ihhih")
_FRAMED_CORRELATION = Struct(">ii")
_PEEK = Struct(">hhi")


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation: int
    client_id: str | None


class UnsupportedRequest(MalformedFrame):
    """An API or version that is not in the table. Only key, version and correlation of `header` are known.

    ApiVersions gets `apis.api_versions_unsupported`; all others close the connection.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"api {header.api_key} version {header.version} is not served")
        self.header = header


def decode_request(
    frame: bytes | bytearray | memoryview, elements_max: int = ELEMENTS_MAX
) -> tuple[RequestHeader, Any]:
    """The header and message of a frame's payload, without its length. Raises MalformedFrame and UnsupportedRequest.

    The message copies its bytes, so the frame may be reused at once. Fields that the version lacks have the schema's
    defaults. Uuids are `uuid.UUID`, None for the zero uuid. At most `elements_max` array elements. Bytes behind the
    body are ignored, as Apache Kafka does, because some clients send them (kafka-go's DescribeAcls).
    """
    data = frame if isinstance(frame, memoryview) else memoryview(frame)
    header, at = request_start(data)
    return header, decode_body(
        APIS[header.api_key].request, header.version, data, at, elements_max, allow_trailing=True
    )


def request_start(data: memoryview) -> tuple[RequestHeader, int]:
    """A request's header and the position of its body. Raises MalformedFrame and UnsupportedRequest."""
    if len(data) < _PEEK.size:
        raise MalformedFrame("request header")
    key, version, correlation = _PEEK.unpack_from(data)
    api = APIS.get(key)
    if api is None or not api.min_version <= version <= api.max_version:
        raise UnsupportedRequest(RequestHeader(key, version, correlation, None))
    head = request_head(data, 0, len(data), api.flexible_from <= version)
    try:
        client_id = None if head.client_id is None else head.client_id.decode()
    except UnicodeDecodeError as error:
        raise MalformedFrame("client id") from error
    header = RequestHeader(key, version, correlation, client_id)
    body = head.body
    if key == _METADATA and api.flexible_from <= version:
        body = _after_wide_null(data, body, version)
    return header, body


def _after_wide_null(data: memoryview, at: int, version: int) -> int:
    """The position of Metadata's body. librdkafka asks for all topics with a null array of four zero bytes, not one.

    Apache Kafka reads the flags of such a request from the last bytes of the array, as false, and ignores the rest.
    Here they are read where the client put them. No other client sends a body of this length that begins with zero.
    """
    flags = 3 if version <= METADATA_CLUSTER_OPERATIONS_UNTIL else 2
    whole = WIDE_NULL.size + flags + 1  # and the tagged fields' count
    if len(data) - at == whole and WIDE_NULL.unpack_from(data, at) == (0,):
        return at + WIDE_NULL.size - 1
    return at


def encode_response(api_key: int, version: int, correlation: int, message: Message) -> bytes:
    """A whole frame: length, header (v0 for ApiVersions), body."""
    return _finished(response_head(api_key, version, correlation), message, version)


def response_head(api_key: int, version: int, correlation: int) -> EncodeBuffer:
    """The start of a frame up to its body; its length, the first four bytes, is set later."""
    api = APIS[api_key]
    out = EncodeBuffer(_ENCODE_BYTES_FIRST)
    _FRAMED_CORRELATION.pack_into(out.buf, 0, 0, correlation)
    out.pos = _FRAMED_CORRELATION.size
    if api.flexible_from <= version and api_key != _API_VERSIONS:
        out.buf[out.pos] = 0
        out.pos += 1
    return out


def encode_request(message: Message, version: int, correlation: int, client_id: str) -> bytes:
    """A whole frame: length, header, body."""
    return _finished(started_request(message, version, correlation, client_id), message, version)


def started_request(message: Message, version: int, correlation: int, client_id: str) -> EncodeBuffer:
    """The start of a request's frame up to its body; its length, the first four bytes, is set later."""
    client = client_id.encode()
    out = EncodeBuffer(_ENCODE_BYTES_FIRST)
    out.ensure(_FRAMED_HEAD.size + len(client) + 1)
    _FRAMED_HEAD.pack_into(out.buf, 0, 0, message.API_KEY, version, correlation, len(client))
    stop = _FRAMED_HEAD.size + len(client)
    out.buf[_FRAMED_HEAD.size : stop] = client
    out.pos = stop
    if message.flexible_version_q(version):
        out.buf[stop] = 0
        out.pos += 1
    return out


def _finished(out: EncodeBuffer, message: Message, version: int) -> bytes:
    flexible = message.flexible_version_q(version)
    message._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)(message, out)
    INT32.pack_into(out.buf, 0, out.pos - INT32.size)
    return bytes(memoryview(out.buf)[: out.pos])


def decode_response(
    api_key: int, version: int, frame: bytes | bytearray | memoryview, elements_max: int = ELEMENTS_MAX
) -> tuple[int, Any]:
    """(correlation id, message) of a response's payload. Raises MalformedFrame."""
    data = frame if isinstance(frame, memoryview) else memoryview(frame)
    correlation, version, at = response_start(api_key, version, data)
    return correlation, decode_body(APIS[api_key].response, version, data, at, elements_max)


def response_start(api_key: int, version: int, data: memoryview) -> tuple[int, int, int]:
    """A response's correlation id, its version, and the position of its body. Raises MalformedFrame."""
    api = APIS[api_key]
    if len(data) < INT32.size:
        raise MalformedFrame("response header")
    (correlation,) = INT32.unpack_from(data)
    at = INT32.size
    if api_key == _API_VERSIONS:
        if bytes(data[at : at + 2]) == _UNSUPPORTED_VERSION:
            version = 0  # of a peer that does not know the version asked for
    elif api.flexible_from <= version:
        try:
            at = skip_tags(data, at, len(data))
        except IndexError as error:
            raise MalformedFrame("response header") from error
    return correlation, version, at
