"""Batches that lie: an error for their partition, and nothing of them in the log or in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import pack_into

import pytest
from msgspec.structs import replace

from common.errors import ErrorCode
from records.batch import (
    HEADER_BYTES,
    PREFIX_BYTES,
    BatchHeader,
    iterate_batches,
    read_header,
    seal,
    write_header,
)
from records.builder import build_batch
from records.compression import Compression, compress
from records.record import Record, encode_record
from tests.faults.conftest import INFLATED_BYTES_MAX
from tests.faults.raw_client import RawClient, closed_quietly, wait_until
from tests.faults.watched_node import (
    MIB,
    WatchedNode,
    bystander,
    change_config,
    fetch_request,
    make_topic,
    produce,
    produce_request,
    some_batch,
)
from wire.codec import decode_response, encode_request

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]

BOMB_BYTES = 256 * MIB
DAY_MS = 86_400_000
# What is inflated for two batches at once, each with the chunk that goes over the limit, a codec's window and copies.
INSPECTION_BYTES = 12 * INFLATED_BYTES_MAX
Spoil = Callable[[bytearray], bytearray]
Bombs = dict[Compression, bytearray]


def with_header(change: Callable[[BatchHeader], BatchHeader]) -> Spoil:
    """A batch with other fields and a right CRC over them."""

    def spoil(batch: bytearray) -> bytearray:
        write_header(batch, 0, change(read_header(batch, 0)))
        seal(batch, 0, len(batch))
        return batch

    return spoil


def flipped(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


def old_message(magic: int) -> Spoil:
    def spoil(batch: bytearray) -> bytearray:
        pack_into(">qiIbb", batch, 0, 0, len(batch) - 12, 0, magic, 0)
        return batch

    return spoil


BAD_BATCHES: dict[str, tuple[Spoil, ErrorCode]] = {
    "flipped bit": (flipped, ErrorCode.CORRUPT_MESSAGE),
    "cut short": (lambda batch: batch[:-1], ErrorCode.INVALID_RECORD),
    "shorter than a header": (lambda batch: batch[:40], ErrorCode.INVALID_RECORD),
    "garbage": (lambda batch: bytearray(b"\xa5" * len(batch)), ErrorCode.CORRUPT_MESSAGE),
    "nothing": (lambda batch: bytearray(), ErrorCode.INVALID_RECORD),
    "two batches": (lambda batch: batch + batch, ErrorCode.INVALID_RECORD),
    "magic 0": (old_message(0), ErrorCode.INVALID_RECORD),
    "magic 1": (old_message(1), ErrorCode.INVALID_RECORD),
    "magic 3": (with_header(lambda h: replace(h, magic=3)), ErrorCode.CORRUPT_MESSAGE),
    "negative length": (with_header(lambda h: replace(h, batch_length=-1)), ErrorCode.CORRUPT_MESSAGE),
    "length of gigabytes": (with_header(lambda h: replace(h, batch_length=2**31 - 1)), ErrorCode.INVALID_RECORD),
    "no records": (with_header(lambda h: replace(h, count=0, last_offset_delta=-1)), ErrorCode.INVALID_RECORD),
    "count of millions": (with_header(lambda h: replace(h, count=2**31 - 1)), ErrorCode.INVALID_RECORD),
    "negative count": (with_header(lambda h: replace(h, count=-1)), ErrorCode.INVALID_RECORD),
    "offset delta beyond the count": (with_header(lambda h: replace(h, last_offset_delta=9)), ErrorCode.INVALID_RECORD),
    "base offset": (with_header(lambda h: replace(h, base_offset=5)), ErrorCode.INVALID_RECORD),
    "negative base offset": (with_header(lambda h: replace(h, base_offset=-(2**62))), ErrorCode.INVALID_RECORD),
    "control bit": (with_header(lambda h: replace(h, attributes=32)), ErrorCode.INVALID_RECORD),
    "transactional control": (
        with_header(lambda h: replace(h, attributes=48, producer_id=1, producer_epoch=0, base_sequence=0)),
        ErrorCode.INVALID_RECORD,
    ),
    "unknown codec": (with_header(lambda h: replace(h, attributes=7)), ErrorCode.INVALID_RECORD),
    "producer without an epoch": (with_header(lambda h: replace(h, producer_id=1)), ErrorCode.INVALID_RECORD),
    "log append time": (with_header(lambda h: replace(h, attributes=8)), ErrorCode.INVALID_TIMESTAMP),
    "time in the future": (
        with_header(lambda h: replace(h, max_timestamp=h.max_timestamp + 2 * DAY_MS)),
        ErrorCode.INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_batch_that_lies_is_refused_and_leaves_no_trace(node: WatchedNode, name: str) -> None:
    spoil, code = BAD_BATCHES[name]
    with node.connect() as client:
        topic = make_topic(client)
        assert produce(client, topic, spoil(some_batch())).error_code == code
        good = produce(client, topic, some_batch())  # the same connection goes on
        assert (good.error_code, good.base_offset) == (0, 0)
        (read,) = client.ask(fetch_request(topic), 11).responses[0].partitions
        assert read_header(read.records, 0).count == 1


def test_a_batch_over_the_limit_is_too_large(node: WatchedNode) -> None:
    with node.connect() as client:
        topic = make_topic(client, {"max.message.bytes": "1000"})
        assert produce(client, topic, some_batch(bytes(2_000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert produce(client, topic, some_batch()).error_code == 0


def test_a_past_beyond_the_topics_limit_is_refused(node: WatchedNode) -> None:
    with node.connect() as client:
        topic = make_topic(client, {"message.timestamp.before.max.ms": "1000"})
        old = build_batch([Record(0, int(time.time() * 1_000) - DAY_MS, b"k", b"v")])
        assert produce(client, topic, old).error_code == ErrorCode.INVALID_TIMESTAMP


def bomb(codec: Compression) -> bytearray:
    """A batch whose records inflate to many times what the broker may inflate; below 4 MiB on the wire."""
    size = BOMB_BYTES if codec in (Compression.GZIP, Compression.ZSTD) else BOMB_BYTES // 4
    return with_body(codec, compress(codec, encode_record(0, 0, b"k", bytes(size))))


def with_body(codec: Compression, body: bytes, model: bytearray | None = None) -> bytearray:
    """A batch whose header is right in all, `model`'s where there is one, and whose compressed records are `body`."""
    batch = some_batch() if model is None else model
    whole = batch[:HEADER_BYTES] + body
    header = replace(read_header(batch, 0), attributes=int(codec), batch_length=len(whole) - PREFIX_BYTES)
    write_header(whole, 0, header)
    seal(whole, 0, len(whole))
    return whole


LOOKED_INTO = {
    "recompressed": {"compression.type": "gzip"},
    "stored plainly": {"compression.type": "uncompressed"},
    "compacted": {"cleanup.policy": "compact"},
}


@pytest.fixture(scope="module")
def bombs() -> Bombs:
    return {codec: bomb(codec) for codec in Compression if codec is not Compression.NONE}


@pytest.mark.parametrize("kind", LOOKED_INTO)
@pytest.mark.parametrize("codec", [c for c in Compression if c is not Compression.NONE])
def test_a_bomb_is_cut_short_where_the_broker_looks_into_it(
    node: WatchedNode, bombs: Bombs, codec: Compression, kind: str
) -> None:
    configs = LOOKED_INTO[kind]
    if configs.get("compression.type") == codec.name.lower():
        pytest.skip("passes through unread")
    node.forget_peak()
    before = node.resident_bytes()
    with node.connect() as client, bystander(node):
        topic = make_topic(client, configs)
        for _ in range(3):
            answer = produce(client, topic, bombs[codec])
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert str(INFLATED_BYTES_MAX) in answer.error_message
        assert produce(client, topic, some_batch()).error_code == 0
    assert node.peak_bytes() < before + INSPECTION_BYTES


def test_many_bombs_at_once_are_inflated_a_few_at_a_time(node: WatchedNode, bombs: Bombs) -> None:
    node.forget_peak()
    before = node.resident_bytes()
    clients = [node.connect() for _ in range(12)]
    try:
        with bystander(node):
            for client in clients:
                topic = make_topic(client, LOOKED_INTO["recompressed"])
                client.send(encode_request(produce_request(topic, bombs[Compression.ZSTD]), 9, 99, "raw") * 5)
            for client in clients:
                for _ in range(5):
                    _, answer = decode_response(0, 9, client.receive_frame())
                    (part,) = answer.responses[0].partition_responses
                    assert part.error_code == ErrorCode.INVALID_RECORD
        assert node.peak_bytes() < before + INSPECTION_BYTES
    finally:
        closed_quietly(clients)


def test_a_bomb_that_lies_in_a_log_stops_no_compaction(node: WatchedNode, bombs: Bombs) -> None:
    """Where nobody looks into batches it is stored; compacted later, it stays as it is, and its neighbours go on."""
    node.forget_peak()
    before = node.resident_bytes()
    with node.connect() as client:
        topic = make_topic(client, {"segment.bytes": str(1 * MIB), "max.message.bytes": str(1 * MIB)})
        for batch in (some_batch(), bombs[Compression.ZSTD], some_batch(b"newer"), some_batch(bytes(900_000))):
            assert produce(client, topic, batch).error_code == 0
        assert produce(client, topic, some_batch(bytes(900_000))).error_code == 0
        change_config(client, topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        wait_until(lambda: offsets_of(client, topic) == [1, 3])
    assert node.peak_bytes() < before + INSPECTION_BYTES


def offsets_of(client: RawClient, topic: str) -> list[int]:
    """The base offsets of the batches that a reader gets with one fetch: those of the first segment."""
    (part,) = client.ask(fetch_request(topic), 11).responses[0].partitions
    view = memoryview(part.records)
    return [header.base_offset for _, header in iterate_batches(view, 0, len(view))]


@pytest.mark.parametrize("configs", [{}, *LOOKED_INTO.values()], ids=["as they come", *LOOKED_INTO])
def test_what_is_no_record_is_refused_for_good(node: WatchedNode, configs: dict[str, str]) -> None:
    """Under a right CRC it would be acknowledged, and stop whoever reads the partition."""
    with node.connect() as client:
        topic = make_topic(client, configs)
        for codec in Compression:
            for body in (bytes(range(200)), bytes(50), b""):
                assert produce(client, topic, with_body(codec, body)).error_code == ErrorCode.INVALID_RECORD
        assert produce(client, topic, some_batch()).base_offset == 0


def test_a_topic_may_have_each_record_checked(node: WatchedNode) -> None:
    """The damage lies behind what every topic's batches are looked at for."""
    now = int(time.time() * 1_000)
    with node.connect() as client:
        topics = [make_topic(client), make_topic(client, {"tidelog.records.check": "all"})]
        for codec in Compression:
            sound = build_batch([Record(n, now, b"k", b"v") for n in range(100)])
            damaged = with_body(codec, compress(codec, bytes(sound[HEADER_BYTES:-1]) + b"\1"), sound)
            codes = [produce(client, topic, damaged).error_code for topic in topics]
            assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
            assert produce(client, topics[1], sound).error_code == 0


def test_a_compacted_topic_says_which_records_lack_a_key(node: WatchedNode) -> None:
    with node.connect() as client:
        topic = make_topic(client, {"cleanup.policy": "compact"})
        now = int(time.time() * 1_000)
        for codec in Compression:
            batch = build_batch([Record(0, now, b"k", b"v"), Record(1, now, None, b"v")], compression=codec)
            answer = produce(client, topic, batch)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert [row.batch_index for row in answer.record_errors] == [1]
