"""How long a string may be: the hand-written codecs take what the schema decoder takes, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import MalformedFrame
from common.pacing import at_once
from wire import hot_codec as hot
from wire.codec import decode_request, encode_request
from wire.messages import FetchRequest, ProduceRequest

LONGEST = 0x7FFF  # Apache Kafka's generated readers refuse more, also where the length is a varint
LENGTHS = st.integers(0, 200) | st.integers(LONGEST - 200, LONGEST + 200) | st.integers(LONGEST, 1 << 17)


def produce_with(field: str, text: str) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData(
        name=text if field == "topic" else "t",
        partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=None)],
    )
    transactional_id = text if field == "transactional id" else None
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1, topic_data=[topic])


def fetch_with(field: str, text: str) -> FetchRequest:
    topic = FetchRequest.FetchTopic(topic=text if field == "topic" else "t", partitions=[])
    forgotten = FetchRequest.ForgottenTopic(topic=text if field == "forgotten topic" else "t", partitions=[])
    return FetchRequest(
        cluster_id=text if field == "cluster id" else None,
        max_wait_ms=1,
        min_bytes=1,
        topics=[topic],
        forgotten_topics_data=[forgotten],
        rack_id=text if field == "rack" else "",
    )


def is_taken(read: Any) -> bool:
    try:
        read()
    except MalformedFrame:
        return False
    return True


def body_of(frame: bytes) -> tuple[bytearray, int, int]:
    buffer = bytearray(frame)
    return buffer, hot.request_head(buffer, 4, len(buffer), True).body, len(buffer)


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("field", ["transactional id", "topic"])
@settings(max_examples=40, deadline=None)
@given(length=LENGTHS)
@example(length=LONGEST)
@example(length=LONGEST + 1)
def test_produce_takes_as_long_strings_as_the_schema_decoder(version: int, field: str, length: int) -> None:
    frame = encode_request(produce_with(field, "x" * length), version, 1, "c")
    buffer, at, end = body_of(frame)
    allowed = is_taken(lambda: decode_request(frame[4:]))
    assert allowed is (length <= LONGEST)
    assert is_taken(lambda: hot.decode_produce(buffer, at, end, version, b"lkc-aaaaaa_")) is allowed
    assert is_taken(lambda: at_once(hot.produce_decoding(buffer, at, end, version))) is allowed


@pytest.mark.parametrize("field", ["topic", "forgotten topic", "rack", "cluster id"])
@settings(max_examples=40, deadline=None)
@given(length=LENGTHS)
@example(length=LONGEST)
@example(length=LONGEST + 1)
def test_fetch_takes_as_long_strings_as_the_schema_decoder(field: str, length: int) -> None:
    frame = encode_request(fetch_with(field, "x" * length), 12, 1, "c")
    buffer, at, end = body_of(frame)
    allowed = is_taken(lambda: decode_request(frame[4:]))
    assert allowed is (length <= LONGEST)
    assert is_taken(lambda: hot.decode_fetch(buffer, at, end, 12, b"lkc-aaaaaa_")) is allowed
    assert is_taken(lambda: at_once(hot.fetch_decoding(buffer, at, end, 12))) is allowed
