"""Paced decoding and encoding: the same bytes and values as in one go, in steps of bounded cost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from common.errors import MalformedFrame, ProtocolError
from common.pacing import Work, at_once
from tests.wire.schema_values import message_of
from wire.apis import APIS, Api, ApiKey
from wire.codec import decode_request, decode_response, encode_request, encode_response
from wire.decoder import TAGS_MAX
from wire.messages import MetadataRequest, MetadataResponse
from wire.paced_codec import (
    PART_BYTES,
    decode_request_work,
    decode_response_work,
    encode_request_work,
    encode_response_work,
)
from wire.primitives import put_uvarint

STEP_COST_MAX = 1_000
_CASES = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


def _frames(api: Api, version: int, seed: int) -> tuple[bytes, bytes]:
    rng = random.Random(seed)
    request = encode_request(message_of(api.request, version, rng), version, 7, "client")
    response = message_of(api.response, version, rng)
    if api.key == ApiKey.API_VERSIONS:
        response.error_code = 0  # an error comes in another version
    return request, encode_response(api.key, version, 7, response)


@pytest.mark.parametrize(("api", "version"), _CASES, ids=lambda case: getattr(case, "name", str(case)))
def test_paced_codecs_agree_with_those_in_one_go(api: Api, version: int) -> None:
    for seed in range(3):
        request, response = _frames(api, version, seed)
        frame = memoryview(request)[4:]
        header, message = at_once(decode_request_work(frame))
        assert b"".join(at_once(encode_request_work(message, version, 7, "client"))) == encode_request(
            message, version, 7, "client"
        )
        assert (header, _plain(message)) == (decode_request(frame)[0], _plain(decode_request(frame)[1]))
        answer = decode_response(api.key, version, memoryview(response)[4:])[1]
        paced = at_once(decode_response_work(api.key, version, memoryview(response)[4:]))
        assert _plain(paced) == _plain(answer)
        assert b"".join(at_once(encode_response_work(api.key, version, 7, answer))) == response


@pytest.mark.parametrize("version", [0, 8, 12])
def test_large_messages_cost_little_per_step_and_leave_in_parts(version: int) -> None:
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[topic(name=f"topic-{n}", topic_id=None) for n in range(10_000)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    parts, costs = _costs(encode_request_work(request, version, 1, "c"))
    assert max(costs) <= STEP_COST_MAX
    assert b"".join(parts) == encode_request(request, version, 1, "c")
    frame = memoryview(encode_request(request, version, 1, "c"))[4:]
    (_, decoded), costs = _costs(decode_request_work(frame))
    assert len(decoded.topics) == 10_000
    assert max(costs) <= STEP_COST_MAX
    assert sum(costs) >= 10_000

    row = MetadataResponse.MetadataResponseTopic
    partition = row.MetadataResponsePartition
    partitions = [
        partition(
            error_code=0, partition_index=n, leader_id=1, leader_epoch=1, replica_nodes=[1, 2], isr_nodes=[1, 2],
            offline_replicas=[],
        )
        for n in range(10_000)
    ]  # fmt: skip
    topics = [row(error_code=0, name=f"t{n}", topic_id=None, partitions=partitions[:n]) for n in (0, 3, 100, 10_000)]
    answer = MetadataResponse(brokers=[], cluster_id="c", topics=topics)
    parts, costs = _costs(encode_response_work(3, version, 1, answer))
    assert b"".join(parts) == encode_response(3, version, 1, answer)
    assert max(len(part) for part in parts) < 2 * PART_BYTES
    assert max(costs) <= STEP_COST_MAX
    with pytest.raises(ProtocolError):
        at_once(encode_response_work(3, version, 1, answer, 100_000))


def test_a_struct_has_a_bounded_number_of_tagged_fields() -> None:
    request = MetadataRequest(
        topics=[], allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )  # fmt: skip
    frame = encode_request(request, 12, 1, "c")[4:-1]
    for count, is_refused in ((TAGS_MAX, False), (TAGS_MAX + 1, True)):
        tagged = memoryview(frame + put_uvarint(count) + b"".join(put_uvarint(9 + n) + b"\0" for n in range(count)))
        for decode in (decode_request, lambda data: at_once(decode_request_work(data))):
            if is_refused:
                with pytest.raises(MalformedFrame):
                    decode(tagged)
            else:
                decode(tagged)


def test_a_string_is_no_longer_than_kafkas() -> None:
    """A compact string could otherwise be as long as a frame, and be decoded in one go."""
    topic = MetadataRequest.MetadataRequestTopic
    for length, is_refused in ((0x7FFF, False), (0x8000, True)):
        request = MetadataRequest(
            topics=[topic(name="x" * length, topic_id=None)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        frame = encode_request(request, 12, 1, "c")[4:]
        if is_refused:
            with pytest.raises(MalformedFrame):
                decode_request(frame)
        else:
            decode_request(frame)


def _costs(work: Work[Any]) -> tuple[Any, list[int]]:
    costs: list[int] = []
    while True:
        try:
            costs.append(next(work))
        except StopIteration as end:
            return end.value, costs


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    struct = getattr(value, "_struct", None)
    if struct is None:
        return value
    return {name: _plain(getattr(value, name, None)) for name in struct.fields}
