"""Records with the keys leave a segment's batches; all others stay as they are, and a digest shows it."""

from __future__ import annotations

import random

import pytest

from records.batch import iterate_batches
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record, decode_records
from spark_offload.erasure.key_digests import ErasureKeys, KeyMatcher
from spark_offload.erasure.survivors import SegmentScan
from spark_offload.erasure.thinning import thin
from spark_offload.segments.batch_scan import scan_batches
from spark_offload.segments.varints import DamagedRecords
from tests.spark_offload.tier_builder import NOW, batch, marker, transactional

SECRET = bytes(32)
INFLATED_MAX = 1 << 24


def matcher(*keys: bytes) -> KeyMatcher:
    return KeyMatcher(ErasureKeys(enumerate(keys), SECRET).digests, SECRET)


def oracle(log: bytes) -> list[tuple[object, ...]]:
    """Every record with what its batch says, by the other decoder."""
    found: list[tuple[object, ...]] = []
    for at, header in iterate_batches(memoryview(log), 0, len(log), verify_crc=True):
        for one in decode_records(memoryview(log), at, header.size, inflated_bytes_max=INFLATED_MAX):
            producer = header.producer_id, header.producer_epoch, header.base_sequence
            found.append((one, header.attributes, header.base_offset, header.last_offset, producer))
    return found


def scanned(log: bytes, keys: KeyMatcher, pieces: int = 1) -> SegmentScan:
    scan = SegmentScan(keys)
    bounds = [0, *(at for at, _ in list(iterate_batches(memoryview(log), 0, len(log)))[1:]), len(log)]
    chosen = sorted({bounds[len(bounds) * part // pieces] for part in range(1, pieces)} | {len(log)})
    start = 0
    for end in chosen:
        view = memoryview(log)[start:end]
        scan.feed(view, scan_batches(view))
        start = end
    return scan


def thinned(log: bytes, keys: KeyMatcher) -> bytes:
    view = memoryview(log)
    return b"".join(thin(view, scan_batches(view), keys).parts)


def random_log(seed: int) -> bytes:
    chance = random.Random(seed)
    batches, offset = [], 0
    for _ in range(60):
        records = []
        for at in range(chance.randint(1, 9)):
            key = None if chance.random() < 0.1 else b"k%d" % chance.randint(0, 8)
            value = None if chance.random() < 0.1 else chance.randbytes(chance.randint(0, 40))
            headers = tuple(("h", chance.randbytes(3)) for _ in range(chance.randint(0, 2)))
            records.append(Record(0, NOW + chance.randint(-5, 5) + at, key, value, headers))
        codec = chance.choice(list(Compression))
        producer = {"producer_id": 7, "producer_epoch": 1, "base_sequence": offset} if chance.random() < 0.5 else {}
        batches.append(batch(records, offset, codec, **producer))
        offset += len(records) + chance.randint(0, 3)
    return b"".join(batches)


@pytest.mark.parametrize("seed", range(6))
def test_the_keys_leave_and_nothing_else_does(seed: int) -> None:
    log = random_log(seed)
    keys = matcher(b"k1", b"k4", b"nobody")
    after = thinned(log, keys)
    stays = [row for row in oracle(log) if isinstance(row[0], Record) and row[0].key not in (b"k1", b"k4")]
    assert oracle(after) == stays
    before, again = scanned(log, keys), scanned(after, keys)
    assert before.found
    assert sum(before.found.values()) == len(oracle(log)) - len(stays)
    assert not again.found
    assert before.survivors.hexdigest() == again.survivors.hexdigest()
    assert scanned(after, matcher(b"nobody")).survivors.hexdigest() == before.survivors.hexdigest()
    assert scanned(log, matcher(b"nobody")).survivors.hexdigest() != before.survivors.hexdigest()


def test_the_digest_does_not_depend_on_the_pieces_that_are_read() -> None:
    log, keys = random_log(9), matcher(b"k2")
    digests = {scanned(log, keys, pieces).survivors.hexdigest() for pieces in (1, 2, 7, 30)}
    assert len(digests) == 1


def test_a_log_without_the_keys_stays_byte_for_byte() -> None:
    log = random_log(11)
    assert thinned(log, matcher(b"nobody")) == log


def test_batches_that_lose_everything_keep_their_offsets_and_producer() -> None:
    one = [Record(0, NOW, b"gone", b"x"), Record(1, NOW, b"gone", b"y")]
    log = batch(one, 10, producer_id=3, producer_epoch=2, base_sequence=5)
    after = thinned(log, matcher(b"gone"))
    (header,) = [header for _, header in iterate_batches(memoryview(after), 0, len(after), verify_crc=True)]
    assert (header.count, header.base_offset, header.last_offset) == (0, 10, 11)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 2, 5)
    assert b"gone" not in after


def test_markers_are_not_taken_for_records_with_their_key() -> None:
    log = transactional(5, 0, [b"a"]) + marker(MarkerKind.COMMIT, 5, 1)
    marker_key = decode_records(memoryview(log), len(transactional(5, 0, [b"a"])), 78, inflated_bytes_max=99)[0].key
    assert marker_key is not None
    keys = matcher(marker_key)
    assert not scanned(log, keys).found
    assert thinned(log, keys) == log


@pytest.mark.parametrize("what", ["timestamp", "offset", "value", "order"])
def test_the_digest_sees_what_changed(what: str) -> None:
    records = [Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"2")]
    changed = {
        "timestamp": batch([records[0], records[1]._replace(timestamp=NOW + 1)], 0),
        "offset": batch(records, 1),
        "value": batch([records[0], records[1]._replace(value=b"3")], 0),
        "order": batch([Record(0, NOW, b"b", b"2"), Record(1, NOW, b"a", b"1")], 0),
    }[what]
    keys = matcher(b"nobody")
    assert scanned(changed, keys).survivors.hexdigest() != scanned(batch(records, 0), keys).survivors.hexdigest()


@pytest.mark.parametrize("seed", range(40))
def test_fuzzed_records_end_in_an_error_or_in_records(seed: int) -> None:
    chance = random.Random(seed)
    log = bytearray(random_log(seed)[:4000])
    view = memoryview(log)
    for _ in range(3):
        log[chance.randrange(61, 400)] = chance.randrange(256)
    try:
        batches = scan_batches(view[: _whole(log)], check_crc=False)
        thin(view, batches, matcher(b"k1"))
        SegmentScan(matcher(b"k1")).feed(view, batches)
    except DamagedRecords:
        pass


def _whole(log: bytearray) -> int:
    from spark_offload.segments.batch_scan import whole_batches_end  # noqa: PLC0415

    return whole_batches_end(memoryview(log))[0]
