"""Documents from the web, where what answers is no web server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from common.web_document import SCHEMES, address_of, fault_of, post_document, read_document

HTTP2_SETTINGS = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18)
"""What a port of gRPC sends, as that of a collector: the first frame of HTTP/2."""

ASK: list[Callable[[str], object]] = [
    partial(read_document, bytes_max=1_000, timeout_s=5.0),
    partial(post_document, data=b"spans", content_type="application/x-protobuf", timeout_s=5.0),
]


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("answer", [HTTP2_SETTINGS, b"-ERR unknown command\r\n", b"HTTP/1.1 no number\r\n\r\n", b""])
async def test_a_server_that_does_not_speak_http_is_an_os_error(ask: Callable[[str], object], answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=r"does not speak HTTP|closed connection"):
            await asyncio.to_thread(ask, f"http://127.0.0.1:{port}/v1/traces")


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("url", ["http://collector:no-port/", "http://collector/a b", "http://127.0.0.1:99999/"])
def test_an_address_that_is_none_is_an_os_error_or_a_value_error(ask: Callable[[str], object], url: str) -> None:
    with pytest.raises((OSError, ValueError)):
        ask(url)


@pytest.mark.parametrize("url", ["ftp://user:word@collector:4318/v1?key=word", "ftp://collector/?word"])
@pytest.mark.parametrize("ask", ASK)
def test_no_error_shows_what_may_be_a_secret(ask: Callable[[str], object], url: str) -> None:
    with pytest.raises(ValueError, match="ftp://collector") as caught:
        ask(url)
    assert "word" not in str(caught.value)


NO_ADDRESS = [
    "http://[::1:4318/v1/traces",
    "http://[collector]:4318/",
    "http://collector:port/",
    "http://collector:99999/",
    "http://collector:0/",
    "http://:4318/",
    "http:///v1/traces",
    "http://collector/v1 traces",
    "http://collector/v1\n",
]


@pytest.mark.parametrize("url", NO_ADDRESS)
def test_an_address_that_can_never_be_asked_is_found_and_may_be_named(url: str) -> None:
    assert fault_of(url) and fault_of(url, SCHEMES)
    assert address_of(url)


def test_what_can_be_asked_has_no_fault() -> None:
    for url in (
        "http://collector",
        "https://collector:4318/v1/traces?key=word",
        "http://[::1]:4318/",
        "http://10.0.0.1",
    ):
        assert fault_of(url) == ""
    assert fault_of("file:///etc/a key.json", SCHEMES) == ""
    assert "http://" in fault_of("file:///etc/keys.json") and "http://" in fault_of("collector:4318")


def test_what_is_no_url_is_not_shown() -> None:
    assert "word" not in address_of("http://user:word@[::1/?word")
