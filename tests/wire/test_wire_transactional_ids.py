"""Transactional ids of tenants within Produce."""

from __future__ import annotations

import pytest

from wire import hot_codec as hot
from wire.codec import encode_request
from wire.messages import ProduceRequest


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize(
    ("given", "inward"), [("orders", b"acme_orders"), ("", b"acme_"), (None, None)]
)  # fmt: skip
def test_a_tenants_transactional_id_gets_its_prefix(version: int, given: str | None, inward: bytes | None) -> None:
    request = ProduceRequest(transactional_id=given, acks=-1, timeout_ms=1, topic_data=[])
    buffer = bytearray(encode_request(request, version, 1, "c"))
    at, end = 4, len(buffer)
    body = hot.request_head(buffer, at, end, version >= 9).body
    assert hot.decode_produce(buffer, body, end, version, b"acme_").transactional_id == inward
    assert hot.decode_produce(buffer, body, end, version).transactional_id == (
        None if given is None else given.encode()
    )
