"""The strict decoder: agrees with the codec library on what is whole, and refuses what is not, cheaply."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import MalformedFrame
from tests.common.call_count import counted_calls
from tests.wire.schema_values import message_of
from wire import hot_codec as hot
from wire.apis import APIS, Api, ApiKey
from wire.codec import (
    UnsupportedRequest,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from wire.decoder import decode_body
from wire.messages import (
    CreateTopicsRequest,
    DeleteGroupsRequest,
    FetchRequest,
    FetchSnapshotRequest,
    MetadataRequest,
    ProduceRequest,
    changed,
    raw_uuid,
    schema_uuid,
)

CASES = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
CASE = st.sampled_from(CASES)
SEED = st.integers(0, 2**32)
COUNTED_EVERY = 29  # of many frames: counting takes its time
CLAIMS = [b"\x7f\xff\xff\xff", b"\x40\0\0\0", b"\xff\xff\xff\xff\x07", b"\x80\0\0\0"]


def request_frame(api: Api, version: int, rng: random.Random) -> bytes:
    return encode_request(message_of(api.request, version, rng), version, rng.getrandbits(31), "client")[4:]


def response_message(api: Api, version: int, rng: random.Random) -> Any:
    message = message_of(api.response, version, rng)
    if api.key == ApiKey.API_VERSIONS:
        message.error_code = 0  # with an error its body is v0's
    return message


@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda value: getattr(value, "name", value))
def test_every_request_and_response_survives_the_round_trip(api: Api, version: int) -> None:
    rng = random.Random(f"{api.name}{version}")
    for _ in range(4):
        message = message_of(api.request, version, rng)
        frame = encode_request(message, version, 1234, "me")
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header, decoded = decode_request(frame[4:])
        assert header == (api.key, version, 1234, "me")
        assert encode_request(decoded, version, 1234, "me") == frame
        body = bytes(message.encode(version=version))
        assert frame.endswith(body)
        assert decoded == api.request.decode(body, version=version)

        answer = response_message(api, version, rng)
        frame = encode_response(api.key, version, 99, answer)
        correlation, decoded = decode_response(api.key, version, frame[4:])
        assert correlation == 99
        assert encode_response(api.key, version, 99, decoded) == frame
        answer.API_VERSION = version
        answer.with_header(correlation_id=99)
        assert frame == bytes(answer.encode(header=True, framed=True))


@settings(max_examples=1500, deadline=None)
@given(CASE, SEED, st.booleans())
def test_a_damaged_frame_is_decoded_or_refused(case: tuple[Api, int], seed: int, is_request: bool) -> None:
    api, version = case
    rng = random.Random(seed)
    if is_request:
        frame = bytearray(request_frame(api, version, rng))
    else:
        frame = bytearray(encode_response(api.key, version, 5, response_message(api, version, rng))[4:])
    damage(frame, rng)
    counts = counted_calls() if seed % COUNTED_EVERY == 0 else contextlib.nullcontext()
    with counts as spent, contextlib.suppress(MalformedFrame):
        if is_request:
            decode_request(frame)
        else:
            decode_response(api.key, version, frame)
    assert spent is None or spent.calls < calls_max(frame)


def calls_max(frame: bytes | bytearray) -> int:
    """Of functions, to decode it or to refuse it: what a count in it claims costs nothing."""
    return 2_000 + 20 * len(frame)


def damage(frame: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(5)
        at = rng.randrange(len(frame) + 1)
        if kind == 0 and at < len(frame):
            frame[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            frame[at : at + 4] = rng.choice(CLAIMS)
        elif kind == 2:
            del frame[at:]
        elif kind == 3:
            frame[at:at] = rng.randbytes(rng.randrange(9))
        else:
            del frame[at : at + rng.randrange(9)]


@pytest.mark.parametrize(("api", "version"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_cut_request_is_refused(api: Api, version: int) -> None:
    frame = request_frame(api, version, random.Random(f"{api.name}{version}"))
    for cut in range(len(frame)):
        with pytest.raises(MalformedFrame):
            decode_request(frame[:cut])


def test_claimed_counts_cost_neither_memory_nor_time() -> None:
    """Every position of a frame overwritten with a count of 2**30 in both notations, for every API."""
    rng = random.Random(7)
    frames = [bytes(request_frame(api, api.max_version, rng))[:400] for api in APIS.values()]
    frames += [bytes(request_frame(api, api.min_version, rng))[:400] for api in APIS.values()]
    tracemalloc.start()
    count = 0
    try:
        for frame in frames:
            for at in range(8, len(frame)):
                for claim in (b"\x40\0\0\0", b"\x80\x80\x80\x80\x04"):
                    claimed = frame[:at] + claim + frame[at + len(claim) :]
                    count += 1
                    counts = counted_calls() if count % COUNTED_EVERY == 0 else contextlib.nullcontext()
                    with counts as spent, contextlib.suppress(MalformedFrame):
                        decode_request(claimed)
                    assert spent is None or spent.calls < calls_max(claimed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count > 5000
    assert peak < 2 << 20


def test_more_elements_than_the_limit_are_refused() -> None:
    names = [MetadataRequest.MetadataRequestTopic(name="") for _ in range(1000)]
    frame = encode_request(MetadataRequest(topics=names), 9, 1, "c")[4:]
    decode_request(frame, elements_max=1000)
    with pytest.raises(MalformedFrame):
        decode_request(frame, elements_max=999)


def test_nested_elements_count_together() -> None:
    topic_class = CreateTopicsRequest.CreatableTopic
    assignment_class = topic_class.CreatableReplicaAssignment
    topics = [
        topic_class(name="t", assignments=[assignment_class(partition_index=0, broker_ids=[1] * 5)]) for _ in range(10)
    ]
    frame = encode_request(CreateTopicsRequest(topics=topics), 7, 1, "c")[4:]
    decode_request(frame, elements_max=70)
    with pytest.raises(MalformedFrame):
        decode_request(frame, elements_max=69)


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b"\0\0\0\1" + b"\xff\xff" + b"\1\0\0", 8),  # null topic name below v10
        (b"\0\0\0\1" + b"\xff\xfe" + b"\1\0\0", 8),  # a string of length -2
        (b"\xff\xff\xff\xfe" + b"\1\0\0", 8),  # an array of length -2
        (b"\0\0\0\1" + b"\0\2\xc3\x28" + b"\1\0\0", 8),  # no UTF-8
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1" + b"\1\0\0", 12),  # an endless varint
        (b"\0\1\0\0\1\1\1", 9),  # an unknown tagged field of a byte that is not there
    ],
)
def test_values_that_the_schema_forbids(body: bytes, version: int) -> None:
    with pytest.raises(MalformedFrame):
        decode_body(MetadataRequest, version, memoryview(body), 0)


def test_unknown_tagged_fields_are_skipped_and_known_ones_must_fill_their_size() -> None:
    request = FetchSnapshotRequest(cluster_id="abc", topics=[])
    frame = bytes(request.encode(version=1))
    assert decode_body(FetchSnapshotRequest, 1, memoryview(frame), 0).cluster_id == "abc"
    assert frame.endswith(b"\1\0\4\4abc")
    with_unknown = frame[: -len(b"\1\0\4\4abc")] + b"\2\0\4\4abc\x09\2xy"
    assert decode_body(FetchSnapshotRequest, 1, memoryview(with_unknown), 0).cluster_id == "abc"
    for wrong in (b"\1\0\5\4abcd", b"\1\0\3\4ab", b"\1\0\3\4abc"):
        with pytest.raises(MalformedFrame):
            decode_body(FetchSnapshotRequest, 1, memoryview(frame[: -len(b"\1\0\4\4abc")] + wrong), 0)


def test_absent_tagged_arrays_are_not_shared_between_messages() -> None:
    api = APIS[63]
    frame = encode_request(api.request(broker_id=1, want_fence=False), 1, 1, "c")[4:]
    one, two = decode_request(frame)[1], decode_request(frame)[1]
    assert one.offline_log_dirs == []
    assert one.offline_log_dirs is not two.offline_log_dirs


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (3, 14), (3, -1), (68, 0), (999, 0), (18, 5), (4, 0)])
def test_unserved_requests_say_what_was_asked(key: int, version: int) -> None:
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x2a" + b"whatever"
    with pytest.raises(UnsupportedRequest) as caught:
        decode_request(frame)
    assert caught.value.header[:3] == (key, version, 42)


@given(st.binary(max_size=60))
@example(b"")
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        decode_request(data)


def test_a_decoded_message_does_not_keep_the_receive_buffer() -> None:
    message = ProduceRequest(
        acks=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t",
                partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=b"abc")],
            )
        ],
    )
    buffer = bytearray(encode_request(message, 9, 1, "client")[4:])
    header, decoded = decode_request(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    buffer.clear()  # fails while anything still views it
    assert header.client_id == "client"
    assert decoded.topic_data[0].partition_data[0].records == b"abc"


def test_uuids_both_ways() -> None:
    raw = bytes(range(16))
    assert raw_uuid(schema_uuid(raw)) == raw
    assert raw_uuid(None) == bytes(16)


@pytest.mark.parametrize("version", [9, 10, 11, 12, 13])
def test_librdkafkas_wide_null_of_all_topics_is_read(version: int) -> None:
    """As librdkafka 2.16 sends it for a full list of topics."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=True, include_topic_authorized_operations=False)
    frame = encode_request(request, version, 7, "rdkafka")[4:]
    flags = 3 if version <= 10 else 2
    at = len(frame) - flags - 2
    header, decoded = decode_request(frame[:at] + bytes(3) + frame[at:])
    assert (header.version, decoded.topics, decoded.allow_auto_topic_creation) == (version, None, True)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_bytes_behind_a_requests_body_are_ignored(api: Api) -> None:
    """As Apache Kafka ignores them: kafka-go's DescribeAcls ends in one, librdkafka's AlterUserScramCredentials too."""
    for version in range(api.min_version, api.max_version + 1):
        frame = encode_request(message_of(api.request, version, random.Random(version)), version, 7, "c")[4:]
        for trailing in (b"\0", b"\1", b"\xff" * 9):
            assert repr(decode_request(frame + trailing)) == repr(decode_request(frame))


def test_bytes_behind_a_hand_read_body_are_ignored_and_a_cut_body_is_not() -> None:
    produce = encode_request(ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9, 1, "c")[4:]
    fetch = encode_request(FetchRequest(replica_id=-1, topics=[], forgotten_topics_data=[], rack_id=""), 12, 1, "c")[4:]
    for frame, version, decode in ((produce, 9, hot.decode_produce), (fetch, 12, hot.decode_fetch)):
        buffer = bytearray(frame + b"\7\0")
        body = hot.request_head(buffer, 0, len(buffer), True).body
        whole: Any = decode(buffer, body, len(frame), version)
        assert decode(buffer, body, len(buffer), version) == whole
        with pytest.raises(MalformedFrame):
            decode(buffer, body, len(frame) - 1, version)


def test_a_changed_message_is_a_copy() -> None:
    request = DeleteGroupsRequest(groups_names=["one", "two"])
    other = changed(request, groups_names=["two"])
    assert request.groups_names == ["one", "two"]
    frame = encode_request(DeleteGroupsRequest(groups_names=["two"]), 2, 1, "c")
    assert encode_request(other, 2, 1, "c") == frame
    _, decoded = decode_request(memoryview(encode_request(request, 2, 1, "c"))[4:])
    assert encode_request(changed(decoded, groups_names=["two"]), 2, 1, "c") == frame
