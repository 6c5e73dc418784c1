"""The hand-written Produce and Fetch codecs against the schema codec, byte for byte, in every version."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from common.errors import MalformedFrame
from common.pacing import at_once
from wire import hot_codec as hot
from wire.codec import decode_response, encode_request, encode_response
from wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse, schema_uuid

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(0, 2**63 - 1)
ABORTED = struct.Struct(">qq")
ERROR = st.just(0) | st.integers(-1, 133)
NAME = st.text("abcdefgh.-é", min_size=1, max_size=140).map(str.encode)
TOPIC_ID = st.binary(min_size=16, max_size=16).filter(any)
RECORDS = st.binary(max_size=300)
LEADER = st.none() | st.builds(hot.LeaderHint, st.integers(0, 9), st.integers(0, 99))
ENDPOINT = st.builds(hot.Endpoint, INT32, NAME, st.integers(0, 65535), st.none() | NAME)
PRODUCE = st.integers(*hot.PRODUCE_VERSIONS)
FETCH = st.integers(*hot.FETCH_VERSIONS)
PREFIX = b"other frames' bytes"

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass
class Region:
    data: bytes

    @property
    def file(self) -> Any:
        raise AssertionError("the codec reads no file")

    position = 0

    @property
    def length(self) -> int:
        return len(self.data)


def topics_of(draw: Any, by_id: bool) -> list[bytes]:
    return list(draw(st.lists(TOPIC_ID if by_id else NAME, max_size=3, unique=True)))


def topic_field(topic: bytes, by_id: bool, name: str) -> dict[str, Any]:
    return {"topic_id": schema_uuid(topic)} if by_id else {name: topic.decode()}


def in_buffer(frame: bytes) -> tuple[bytearray, int, int]:
    """A frame's payload amid others in a receive buffer."""
    buffer = bytearray(PREFIX + frame[4:] + b"\xff" * 40)
    return buffer, len(PREFIX), len(PREFIX) + len(frame) - 4


def joined(parts: Sequence[Any]) -> bytes:
    return b"".join(part.data if isinstance(part, Region) else bytes(part) for part in parts)


# produce -----------------------------------------------------------------------------------------------------


@st.composite
def produce_requests(draw: Any) -> tuple[int, Any, list[tuple[bytes, int, bytes]]]:
    version = draw(PRODUCE)
    by_id = version >= 13
    expected: list[tuple[bytes, int, bytes]] = []
    topics = []
    for topic in topics_of(draw, by_id):
        partitions = []
        for index, records in draw(st.lists(st.tuples(INT32, st.none() | RECORDS), max_size=3)):
            expected.append((topic, index, records or b""))
            partitions.append(ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=records))
        topics.append(ProduceRequest.TopicProduceData(partition_data=partitions, **topic_field(topic, by_id, "name")))
    message = ProduceRequest(
        transactional_id=draw(st.none() | NAME.map(bytes.decode)),
        acks=draw(st.integers(-1, 1)),
        timeout_ms=draw(INT32),
        topic_data=topics,
    )
    return version, message, expected


@quick
@given(produce_requests(), st.text(max_size=10))
def test_produce_request_reads_what_the_schema_wrote(case: Any, client: str) -> None:
    version, message, expected = case
    frame = encode_request(message, version, 77, client)
    buffer, at, end = in_buffer(frame)
    head = hot.request_head(buffer, at, end, version >= 9)
    assert (head.api_key, head.version, head.correlation, head.client_id) == (0, version, 77, client.encode())
    call = hot.decode_produce(buffer, head.body, end, version)
    assert call == at_once(hot.produce_decoding(buffer, head.body, end, version))
    assert (call.acks, call.timeout_ms) == (message.acks, message.timeout_ms)
    assert call.transactional_id == (None if message.transactional_id is None else message.transactional_id.encode())
    assert [(part.topic, part.partition, bytes(buffer[part.start : part.end])) for part in call.parts] == expected


@st.composite
def produced_rows(draw: Any, version: int) -> list[hot.ProducedRow]:
    rows = []
    for topic in topics_of(draw, version >= 13):
        for _ in range(draw(st.integers(1, 3))):
            fancy = draw(st.booleans())
            rows.append(
                hot.ProducedRow(
                    topic,
                    draw(INT32),
                    draw(ERROR),
                    draw(INT64),
                    draw(INT64),
                    draw(INT64),
                    draw(st.lists(st.builds(hot.RecordError, INT32, st.none() | NAME), max_size=2)) if fancy else (),
                    draw(st.none() | NAME) if fancy else None,
                    draw(LEADER) if fancy else None,
                )
            )
    return rows


def schema_endpoints(message_class: Any, endpoints: list[hot.Endpoint]) -> list[Any]:
    return [
        message_class.NodeEndpoint(
            node_id=e.node, host=e.host.decode(), port=e.port, rack=None if e.rack is None else e.rack.decode()
        )
        for e in endpoints
    ]


def schema_produce_response(
    version: int, rows: list[hot.ProducedRow], throttle: int, endpoints: list[hot.Endpoint]
) -> Any:
    topic_class = ProduceResponse.TopicProduceResponse
    row_class = topic_class.PartitionProduceResponse
    topics: dict[bytes, list[Any]] = {}
    for row in rows:
        topics.setdefault(row.topic, []).append(
            row_class(
                index=row.partition,
                error_code=row.error,
                base_offset=row.base_offset,
                log_append_time_ms=row.log_append_ms,
                log_start_offset=row.log_start_offset,
                record_errors=[
                    row_class.BatchIndexAndErrorMessage(
                        batch_index=e.batch_index,
                        batch_index_error_message=None if e.message is None else e.message.decode(),
                    )
                    for e in row.record_errors
                ],
                error_message=None if row.error_message is None else row.error_message.decode(),
                current_leader=None
                if row.leader is None
                else row_class.LeaderIdAndEpoch(leader_id=row.leader.leader, leader_epoch=row.leader.epoch),
            )
        )
    return ProduceResponse(
        responses=[
            topic_class(partition_responses=of_topic, **topic_field(topic, version >= 13, "name"))
            for topic, of_topic in topics.items()
        ],
        throttle_time_ms=throttle,
        node_endpoints=schema_endpoints(ProduceResponse, endpoints),
    )


@quick
@given(st.data(), PRODUCE, INT32, INT32, st.lists(ENDPOINT, max_size=2), st.sampled_from([b"", b"tenant_"]))
def test_produce_response_is_the_schemas_byte_for_byte(
    data: Any, version: int, correlation: int, throttle: int, endpoints: list[hot.Endpoint], prefix: bytes
) -> None:
    prefix = prefix if version < 13 else b""
    named = data.draw(produced_rows(version))
    rows = [replace(row, topic=prefix + row.topic) for row in named]
    ours = hot.encode_produce_response(version, correlation, rows, throttle, endpoints, prefix)
    schema = schema_produce_response(version, named, throttle, endpoints)
    assert ours == encode_response(0, version, correlation, schema)
    assert ours == at_once(hot.produce_encoding(version, correlation, rows, throttle, endpoints, prefix))


# fetch -------------------------------------------------------------------------------------------------------


@st.composite
def fetch_requests(draw: Any) -> tuple[int, Any, list[hot.FetchPart], list[tuple[bytes, int]]]:
    version = draw(FETCH)
    by_id = version >= 13
    expected: list[hot.FetchPart] = []
    topics, forgotten, expected_forgotten = [], [], []
    part_class = FetchRequest.FetchTopic.FetchPartition
    for topic in topics_of(draw, by_id):
        partitions = []
        for index in draw(st.lists(INT32, max_size=3)):
            epoch, last, offset, start, most = draw(INT32), draw(INT32), draw(INT64), draw(INT64), draw(INT32)
            expected.append(
                hot.FetchPart(
                    topic,
                    index,
                    epoch if version >= 9 else -1,
                    offset,
                    last if version >= 12 else -1,
                    start if version >= 5 else -1,
                    most,
                )
            )
            extra: dict[str, Any] = {}
            if version >= 17 and draw(st.booleans()):
                extra["replica_directory_id"] = uuid.UUID(bytes=draw(TOPIC_ID))
            if version >= 18 and draw(st.booleans()):
                extra["high_watermark"] = draw(INT64)
            partitions.append(
                part_class(
                    partition=index,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last,
                    log_start_offset=start,
                    partition_max_bytes=most,
                    **extra,
                )
            )
        topics.append(FetchRequest.FetchTopic(partitions=partitions, **topic_field(topic, by_id, "topic")))
    if version >= 7:
        for topic in topics_of(draw, by_id):
            indexes = draw(st.lists(INT32, max_size=3))
            expected_forgotten += [(topic, index) for index in indexes]
            forgotten.append(FetchRequest.ForgottenTopic(partitions=indexes, **topic_field(topic, by_id, "topic")))
    state = draw(st.none() | st.tuples(st.integers(0, 9), INT64)) if version >= 15 else None
    message = FetchRequest(
        cluster_id=draw(st.none() | NAME.map(bytes.decode)) if version >= 12 else None,
        replica_id=draw(st.integers(-1, 9)) if version < 15 else -1,
        replica_state=state and FetchRequest.ReplicaState(replica_id=state[0], replica_epoch=state[1]),
        max_wait_ms=draw(INT32),
        min_bytes=draw(INT32),
        max_bytes=draw(INT32),
        isolation_level=draw(st.integers(0, 1)),
        session_id=draw(INT32) if version >= 7 else 0,
        session_epoch=draw(INT32) if version >= 7 else -1,
        topics=topics,
        forgotten_topics_data=forgotten,
        rack_id=draw(NAME.map(bytes.decode)) if version >= 11 else "",
    )
    return version, message, expected, expected_forgotten


@quick
@given(fetch_requests())
def test_fetch_request_reads_what_the_schema_wrote(case: Any) -> None:
    version, message, parts, forgotten = case
    buffer, at, end = in_buffer(encode_request(message, version, 5, "c"))
    head = hot.request_head(buffer, at, end, version >= 12)
    call = hot.decode_fetch(buffer, head.body, end, version)
    assert call == at_once(hot.fetch_decoding(buffer, head.body, end, version))
    state = message.replica_state
    assert call.replica == (message.replica_id if version < 15 else state.replica_id if state else -1)
    assert call.replica_epoch == (state.replica_epoch if state else -1)
    assert (call.wait_ms_max, call.bytes_min, call.bytes_max) == (
        message.max_wait_ms,
        message.min_bytes,
        message.max_bytes,
    )
    assert call.isolation == message.isolation_level
    assert (call.session_id, call.session_epoch) == (message.session_id, message.session_epoch)
    assert call.rack == message.rack_id.encode()
    assert call.cluster_id == (None if message.cluster_id is None else message.cluster_id.encode())
    assert call.parts == parts
    assert call.forgotten == forgotten


@st.composite
def fetched_rows(draw: Any, version: int) -> list[hot.FetchedRow]:
    rows = []
    pair = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
    for topic in topics_of(draw, version >= 13):
        for _ in range(draw(st.integers(1, 3))):
            tagged = version >= 12 and draw(st.booleans())
            rows.append(
                hot.FetchedRow(
                    topic,
                    draw(INT32),
                    draw(ERROR),
                    draw(INT64),
                    draw(INT64),
                    draw(INT64),
                    draw(st.none() | RECORDS | RECORDS.map(bytearray) | RECORDS.map(Region)),
                    draw(st.none() | st.lists(st.builds(ABORTED.pack, INT64, OFFSET), max_size=2).map(b"".join)),
                    draw(INT32),
                    draw(pair) if tagged else None,
                    draw(LEADER) if tagged else None,
                    draw(pair) if tagged else None,
                )
            )
    return rows


def schema_fetch_response(
    version: int, error: int, session: int, rows: list[hot.FetchedRow], throttle: int, endpoints: list[hot.Endpoint]
) -> Any:
    topic_class = FetchResponse.FetchableTopicResponse
    row_class = topic_class.PartitionData
    topics: dict[bytes, list[Any]] = {}
    for row in rows:
        records: Any = row.records.data if isinstance(row.records, Region) else row.records
        topics.setdefault(row.topic, []).append(
            row_class(
                partition_index=row.partition,
                error_code=row.error,
                high_watermark=row.high_watermark,
                last_stable_offset=row.last_stable_offset,
                log_start_offset=row.log_start_offset,
                diverging_epoch=row.diverging
                and row_class.EpochEndOffset(epoch=row.diverging[0], end_offset=row.diverging[1]),
                current_leader=row.leader
                and row_class.LeaderIdAndEpoch(leader_id=row.leader.leader, leader_epoch=row.leader.epoch),
                snapshot_id=row.snapshot and row_class.SnapshotId(end_offset=row.snapshot[0], epoch=row.snapshot[1]),
                aborted_transactions=None
                if row.aborted is None
                else [row_class.AbortedTransaction(*one) for one in ABORTED.iter_unpack(row.aborted)],
                preferred_read_replica=row.preferred_replica,
                records=records or b"",
            )
        )
    return FetchResponse(
        throttle_time_ms=throttle,
        error_code=error,
        session_id=session,
        responses=[
            topic_class(partitions=of_topic, **topic_field(topic, version >= 13, "topic"))
            for topic, of_topic in topics.items()
        ],
        node_endpoints=schema_endpoints(FetchResponse, endpoints),
    )


@quick
@given(st.data(), FETCH, INT32, ERROR, INT32, INT32, st.lists(ENDPOINT, max_size=2))
def test_fetch_response_is_the_schemas_byte_for_byte(
    data: Any, version: int, correlation: int, error: int, session: int, throttle: int, endpoints: list[hot.Endpoint]
) -> None:
    rows = data.draw(fetched_rows(version))
    ours = hot.encode_fetch_response(version, correlation, error, session, rows, throttle, endpoints)
    schema = schema_fetch_response(version, error, session, rows, throttle, endpoints)
    assert joined(ours) == encode_response(1, version, correlation, schema)
    assert ours == at_once(hot.fetch_encoding(version, correlation, error, session, rows, throttle, endpoints))


# the follower's side -----------------------------------------------------------------------------------------

PLAIN_PART = st.tuples(INT32, INT32, INT64, INT32, INT64, INT32).map(lambda fields: hot.ReplicaPart(*fields))
REPLICA_PARTS = st.dictionaries(
    TOPIC_ID,
    st.lists(PLAIN_PART, max_size=3),
    max_size=3,
)
FORGOTTEN = st.dictionaries(TOPIC_ID, st.lists(INT32, max_size=3), max_size=3)


@quick
@given(st.lists(INT32, min_size=7, max_size=7), INT64, REPLICA_PARTS, FORGOTTEN)
def test_replica_request_is_the_schemas_byte_for_byte(
    numbers: list[int], epoch: int, topics: dict[bytes, list[hot.ReplicaPart]], forgotten: dict[bytes, list[int]]
) -> None:
    correlation, replica, session, session_epoch, wait, least, most = numbers
    ours = hot.encode_replica_fetch(
        correlation, replica, epoch, session, session_epoch, wait, least, most, topics, forgotten
    )
    part_class = FetchRequest.FetchTopic.FetchPartition
    schema = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=replica, replica_epoch=epoch),
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=most,
        session_id=session,
        session_epoch=session_epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic_id=schema_uuid(topic),
                partitions=[
                    part_class(
                        partition=p.partition,
                        current_leader_epoch=p.leader_epoch,
                        fetch_offset=p.offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=p.log_start_offset,
                        partition_max_bytes=p.bytes_max,
                    )
                    for p in parts
                ],
            )
            for topic, parts in topics.items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic_id=schema_uuid(topic), partitions=indexes)
            for topic, indexes in forgotten.items()
        ],
        rack_id="",
    )
    assert ours == encode_request(schema, hot.REPLICA_FETCH_VERSION, correlation, "replica")


@quick
@given(st.data(), INT32, ERROR, INT32, INT32, st.lists(ENDPOINT, max_size=2))
def test_replica_response_reads_what_the_leader_wrote(
    data: Any, correlation: int, error: int, session: int, throttle: int, endpoints: list[hot.Endpoint]
) -> None:
    version = hot.REPLICA_FETCH_VERSION
    rows = data.draw(fetched_rows(version))
    frame = joined(hot.encode_fetch_response(version, correlation, error, session, rows, throttle, endpoints))
    buffer, at, end = in_buffer(frame)
    fetched = hot.decode_replica_fetch(buffer, at, end)
    assert astuple(fetched)[:4] == (correlation, throttle, error, session)
    fields = [(row, astuple(row)) for row in fetched.rows]
    got = [(*told[:5], bytes(buffer[row.start : row.end]), *told[7:]) for row, told in fields]
    want = [
        (
            row.topic,
            row.partition,
            row.error,
            row.high_watermark,
            row.log_start_offset,
            bytes(row.records.data if isinstance(row.records, Region) else row.records or b""),
            row.diverging,
            row.leader,
            row.snapshot,
            row.tier_end,
            row.erased_end,
            row.tier_generation,
        )
        for row in rows
    ]
    assert got == want
    decode_response(1, version, frame[4:])  # and the strict decoder agrees that it is whole


# garbage -----------------------------------------------------------------------------------------------------


def damaged(data: Any, frame: bytes) -> tuple[bytearray, int, int]:
    """One to three bytes changed, or the frame cut, inside a buffer that holds more."""
    buffer, at, end = in_buffer(frame)
    for _ in range(data.draw(st.integers(0, 3))):
        buffer[data.draw(st.integers(at, end - 1))] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    return buffer, at, data.draw(st.integers(at, end)) if data.draw(st.booleans()) else end


@quick
@given(st.data(), produce_requests())
def test_damaged_produce_request_is_read_within_its_frame_or_refused(data: Any, case: Any) -> None:
    version = case[0]
    buffer, at, end = damaged(data, encode_request(case[1], version, 1, "c"))
    try:
        call = hot.decode_produce(buffer, hot.request_head(buffer, at, end, version >= 9).body, end, version)
    except MalformedFrame:
        return
    assert all(at <= part.start <= part.end <= end for part in call.parts)


@quick
@given(st.data(), fetch_requests())
def test_damaged_fetch_request_is_read_or_refused(data: Any, case: Any) -> None:
    version = case[0]
    buffer, at, end = damaged(data, encode_request(case[1], version, 1, "c"))
    try:
        hot.decode_fetch(buffer, hot.request_head(buffer, at, end, version >= 12).body, end, version)
    except MalformedFrame:
        return


@quick
@given(st.data())
def test_damaged_replica_response_is_read_within_its_frame_or_refused(data: Any) -> None:
    rows = data.draw(fetched_rows(hot.REPLICA_FETCH_VERSION))
    buffer, at, end = damaged(data, joined(hot.encode_fetch_response(hot.REPLICA_FETCH_VERSION, 1, 0, 0, rows)))
    try:
        fetched = hot.decode_replica_fetch(buffer, at, end)
    except MalformedFrame:
        return
    assert all(at <= row.start <= row.end <= end for row in fetched.rows)


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x40\0\0\0", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
def test_absurd_counts_are_refused_before_they_cost_anything(count: bytes) -> None:
    produce = bytearray(b"\xff\xff" + b"\0\1" + b"\0\0\0\0" + count)
    with pytest.raises(MalformedFrame):
        hot.decode_produce(produce, 0, len(produce), 3)
    fetch = bytearray(b"\xff\xff\xff\xff" + bytes(13) + count)
    with pytest.raises(MalformedFrame):
        hot.decode_fetch(fetch, 0, len(fetch), 4)
