"""Planted damage, one kind each: it is found, by the check that is meant for it; the rest is checked all the same."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from records.batch import CONTROL, seal
from spark_offload.segments.sound_records import ACROSS_MIN
from spark_offload.verification.checks import Check
from storage.indexes import transaction_index
from storage.log.leader_epochs import LeaderEpochCache
from storage.producers.producer_snapshot import decode_snapshot, encode_snapshot
from tests.spark_offload.verification.verified_tier import (
    NOW,
    VerifiedTier,
    Writer,
    checks_of,
    header_of,
    history,
    records_at,
    verify_here,
)
from tiering.bucket.segment import (
    LEADER_EPOCHS,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
)

HURT = 1
"""The segment of four that the damage is in."""
LENGTH_AT, EPOCH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, MAX_TIMESTAMP_AT = 8, 12, 16, 21, 23, 35
PRODUCER_EPOCH_AT, SEQUENCE_AT, COUNT_AT = 51, 53, 57


def put(form: str, at: int, value: int) -> Callable[[VerifiedTier, int], None]:
    """Write a field of a batch of the hurt segment, with a right CRC and a right entry."""

    def change(tier: VerifiedTier, number: int) -> None:
        position, size = tier.batch_at(HURT, number)

        def spoil(log: bytearray) -> None:
            struct.pack_into(form, log, position + at, value)
            seal(log, position, size)

        tier.spoil_log(HURT, spoil)

    return change


def rebuilt(tier: VerifiedTier, *batches: bytes) -> None:
    """The hurt segment of these batches, in place of its own; entry and sections as a broker makes them."""
    old = tier.written[HURT]
    spare = VerifiedTier(tier.root / "spare")
    spare.add(batches, base_offset=old.segment.base_offset, end_offset=old.segment.end_offset)
    made = spare.written[0]
    old.log, old.segment = made.log, msgspec.structs.replace(made.segment, uuid=old.segment.uuid)
    old.sections = {**made.sections, **{name: old.sections[name] for name in (PRODUCER_SNAPSHOT, LEADER_EPOCHS)}}
    tier.put_together(HURT, epochs=old.segment.epochs)


def batches_of(tier: VerifiedTier) -> list[bytes]:
    log = tier.written[HURT].log
    found = []
    at = 0
    while at < len(log):
        size = struct.unpack_from(">i", log, at + LENGTH_AT)[0] + 12
        found.append(log[at : at + size])
        at += size
    return found


# before publishing: the damage is in what was written ------------------------------------------------------


def flipped_bit(tier: VerifiedTier) -> None:
    position, size = tier.batch_at(HURT, 3)
    tier.spoil_log(HURT, lambda log: log.__setitem__(position + size - 3, log[position + size - 3] ^ 4))


def wrong_length(tier: VerifiedTier) -> None:
    position, size = tier.batch_at(HURT, 3)
    tier.spoil_log(HURT, lambda log: struct.pack_into(">i", log, position + LENGTH_AT, size - 12 + 64))


def gap(tier: VerifiedTier) -> None:
    batches = batches_of(tier)
    rebuilt(tier, *batches[:-2], batches[-1])


def overlap(tier: VerifiedTier) -> None:
    batches = batches_of(tier)
    rebuilt(tier, *batches[:-1], batches[-2], batches[-1])


def wrong_magic(tier: VerifiedTier) -> None:
    put(">b", MAGIC_AT, 1)(tier, 2)


def unknown_attribute(tier: VerifiedTier) -> None:
    put(">h", ATTRIBUTES_AT, 0x400)(tier, 14)


def wrong_count(tier: VerifiedTier) -> None:
    put(">i", COUNT_AT, 2)(tier, 14)


def wrong_records_in_the_manifest(tier: VerifiedTier) -> None:
    tier.put_together(HURT, records=(tier.written[HURT].segment.records or 0) + 1)


def wrong_epoch(tier: VerifiedTier) -> None:
    put(">i", EPOCH_AT, 9)(tier, 4)


def wrong_max_timestamp_of_the_segment(tier: VerifiedTier) -> None:
    tier.put_together(HURT, max_timestamp=NOW + 10_000_000)


def timestamp_beyond_the_segment(tier: VerifiedTier) -> None:
    tier.put_together(HURT, max_timestamp=tier.written[HURT].segment.max_timestamp - 3)


def index_entry_off(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        struct.pack_into(">i", body, 12, struct.unpack_from(">i", body, 12)[0] + 7)

    tier.spoil_section(HURT, OFFSET_INDEX, change)


def index_entry_of_another_batch(tier: VerifiedTier) -> None:
    second = tier.batch_at(HURT, 1)[0]
    tier.spoil_section(HURT, OFFSET_INDEX, lambda body: struct.pack_into(">i", body, 4, second))


def time_index_too_early(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        struct.pack_into(">q", body, 12, struct.unpack_from(">q", body, 12)[0] - 1)

    tier.spoil_section(HURT, TIME_INDEX, change)


def time_index_invents(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        struct.pack_into(">q", body, len(body) - 12, NOW + 77_000)

    tier.spoil_section(HURT, TIME_INDEX, change)


def lost_abort(tier: VerifiedTier) -> None:
    tier.spoil_section(HURT, TRANSACTION_INDEX, lambda body: body.__delitem__(slice(0, 34)))


def invented_abort(tier: VerifiedTier) -> None:
    base = tier.written[HURT].segment.base_offset
    entry = transaction_index.encode(transaction_index.AbortedTransaction(1, base + 1, base + 2, base + 3))
    tier.spoil_section(HURT, TRANSACTION_INDEX, lambda body: body.__setitem__(slice(0, 0), entry))


def abort_that_begins_late(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        struct.pack_into(">q", body, 10, struct.unpack_from(">q", body, 10)[0] + 1)

    tier.spoil_section(HURT, TRANSACTION_INDEX, change)


def abort_index_that_ends_the_search_early(tier: VerifiedTier) -> None:
    tier.spoil_section(HURT, TRANSACTION_INDEX, lambda body: struct.pack_into(">q", body, 26, 10_000))


def commit_that_was_an_abort(tier: VerifiedTier) -> None:
    number = next(n for n in range(40) if header_of(tier, HURT, n).attributes & CONTROL)
    position, size = tier.batch_at(HURT, number)

    def change(log: bytearray) -> None:
        kind = position + 61 + 5 + 2
        struct.pack_into(">h", log, kind, 1 - struct.unpack_from(">h", log, kind)[0])
        seal(log, position, size)

    tier.spoil_log(HURT, change)


def sequence_gap(tier: VerifiedTier) -> None:
    put(">i", SEQUENCE_AT, header_of(tier, HURT, 5).base_sequence + 3)(tier, 5)


def sequence_again(tier: VerifiedTier) -> None:
    put(">i", SEQUENCE_AT, header_of(tier, HURT, 3).base_sequence)(tier, 5)


def producer_epoch_that_falls(tier: VerifiedTier) -> None:
    put(">h", PRODUCER_EPOCH_AT, 4)(tier, 5)


def producer_without_sequence(tier: VerifiedTier) -> None:
    put(">i", SEQUENCE_AT, -1)(tier, 5)


def bad_section(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        body[3] ^= 1

    entry = tier.written[HURT].segment
    tier.spoil_section(HURT, TIME_INDEX, change)
    tier.written[HURT].segment = entry


def snapshot_of_another_moment(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        snapshot = decode_snapshot(bytes(body))
        first = snapshot.entries[0]
        entries = [first._replace(last_sequence=first.last_sequence - 1), *snapshot.entries[1:]]
        body[:] = encode_snapshot(snapshot._replace(entries=entries))

    tier.spoil_section(HURT, PRODUCER_SNAPSHOT, change)


def snapshot_without_a_producer(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        snapshot = decode_snapshot(bytes(body))
        body[:] = encode_snapshot(snapshot._replace(entries=snapshot.entries[1:], batches=[]))

    tier.spoil_section(HURT, PRODUCER_SNAPSHOT, change)


def snapshot_without_an_open_transaction(tier: VerifiedTier) -> None:
    def change(body: bytearray) -> None:
        snapshot = decode_snapshot(bytes(body))
        entries = [entry._replace(transaction_start=-1) for entry in snapshot.entries]
        body[:] = encode_snapshot(snapshot._replace(entries=entries))

    tier.spoil_section(0, PRODUCER_SNAPSHOT, change)


def snapshot_that_is_none(tier: VerifiedTier) -> None:
    tier.spoil_section(HURT, PRODUCER_SNAPSHOT, lambda body: body.__setitem__(9, body[9] ^ 1))


def history_of_other_epochs(tier: VerifiedTier) -> None:
    epochs = LeaderEpochCache()
    for epoch, start in ((0, 0), (1, 11)):
        epochs.assign(epoch, start)
    tier.spoil_section(3, LEADER_EPOCHS, lambda body: body.__setitem__(slice(None), epochs.encode()))


def segments_that_cannot_follow(tier: VerifiedTier) -> None:
    segment = tier.written[3].segment
    tier.put_together(3, epochs=[(0, segment.base_offset)])


def another_topics_object(tier: VerifiedTier) -> None:
    entry = tier.written[HURT].segment
    batches = batches_of(tier)
    number = len(batches) - 1
    header = header_of(tier, HURT, number)
    records = [record._replace(value=b"w" + (record.value or b"")[1:]) for record in records_at(header.base_offset, 4)]
    position, size = tier.batch_at(HURT, number)
    del records

    def change(log: bytearray) -> None:
        log[position + size - 2] ^= 1
        seal(log, position, size)

    tier.spoil_log(HURT, change)
    tier.written[HURT].segment = entry


def end_beyond_the_last_record(tier: VerifiedTier) -> None:
    tier.put_together(3, end_offset=tier.written[3].segment.end_offset + 5)


def segment_not_named(tier: VerifiedTier) -> None:
    tier.publish()
    gone = tier.written.pop(HURT)
    (tier.root / tier.tier.segment_key(tier.path, gone.segment.id)).unlink()


def segment_named_beside_another(tier: VerifiedTier) -> None:
    tier.written.insert(HURT, msgspec.convert(tier.written[HURT], type(tier.written[HURT]), from_attributes=True))
    tier.put_together(HURT, uuid="f" * 32)


def log_start_without_its_segment(tier: VerifiedTier) -> None:
    del tier.written[0]


WRITTEN: dict[Callable[[VerifiedTier], None], Check] = {
    flipped_bit: Check.BATCH_CRC,
    wrong_length: Check.OBJECT_UNREADABLE,
    gap: Check.OFFSETS,
    overlap: Check.OFFSETS,
    wrong_magic: Check.BATCH_HEADER,
    unknown_attribute: Check.BATCH_HEADER,
    wrong_count: Check.BATCH_COUNT,
    wrong_records_in_the_manifest: Check.BATCH_COUNT,
    wrong_epoch: Check.LEADER_EPOCH,
    wrong_max_timestamp_of_the_segment: Check.TIMESTAMP,
    timestamp_beyond_the_segment: Check.TIMESTAMP,
    index_entry_off: Check.OFFSET_INDEX,
    index_entry_of_another_batch: Check.OFFSET_INDEX,
    time_index_too_early: Check.TIME_INDEX,
    time_index_invents: Check.TIME_INDEX,
    lost_abort: Check.TRANSACTION_INDEX,
    invented_abort: Check.TRANSACTION_INDEX,
    abort_that_begins_late: Check.TRANSACTION_INDEX,
    abort_index_that_ends_the_search_early: Check.TRANSACTION_INDEX,
    commit_that_was_an_abort: Check.TRANSACTION_INDEX,
    sequence_gap: Check.SEQUENCE,
    sequence_again: Check.SEQUENCE,
    producer_epoch_that_falls: Check.SEQUENCE,
    producer_without_sequence: Check.BATCH_HEADER,
    bad_section: Check.SECTION,
    snapshot_of_another_moment: Check.PRODUCER_SNAPSHOT,
    snapshot_without_a_producer: Check.PRODUCER_SNAPSHOT,
    snapshot_without_an_open_transaction: Check.PRODUCER_SNAPSHOT,
    snapshot_that_is_none: Check.SECTION,
    history_of_other_epochs: Check.LINEAGE,
    segments_that_cannot_follow: Check.LINEAGE,
    another_topics_object: Check.LOG_CHECKSUM,
    end_beyond_the_last_record: Check.OFFSETS,
    segment_not_named: Check.COVERAGE,
    segment_named_beside_another: Check.COVERAGE,
    log_start_without_its_segment: Check.COVERAGE,
}


@pytest.mark.parametrize("split_bytes", [1 << 20, 1_200], ids=["whole", "split"])
@pytest.mark.parametrize("plant", WRITTEN, ids=lambda plant: plant.__name__)
def test_damage_that_was_written_is_found(
    tmp_path: Path, plant: Callable[[VerifiedTier], None], split_bytes: int
) -> None:
    tier = VerifiedTier(tmp_path)
    writer = history(tier)
    plant(tier)
    tier.publish()
    report = verify_here(tier, split_bytes=split_bytes, chunk_bytes=2_000)
    assert WRITTEN[plant] in checks_of(report), report.lines()
    assert report.failed
    assert report.partitions[0].covered[-1][1] == writer.offset  # the rest was looked at


# after publishing: the damage came to the bucket later -----------------------------------------------------


# Batches of small segments are looked at one by one, those of large ones together.
SMALL = pytest.mark.parametrize("small", [0, ACROSS_MIN], ids=["one by one", "together"])


@SMALL
def test_records_that_do_not_fit_their_batch_are_found_by_decoding(tmp_path: Path, small: int) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier, small=small)
    number = next(n for n in range(30, 0, -1) if not header_of(tier, HURT, n - 10).attributes) - 10
    position, size = tier.batch_at(HURT, number)

    def change(log: bytearray) -> None:
        log[position + 61] ^= 0x7E
        seal(log, position, size)

    tier.spoil_log(HURT, change)
    tier.publish()
    assert not verify_here(tier).failed
    report = verify_here(tier, deep=True)
    assert checks_of(report) == {Check.RECORD}
    (problem,) = report.problems
    assert (problem.position, problem.key) == (position, tier.key(HURT))


@SMALL
def test_a_batch_that_says_another_timestamp_than_its_records_is_found_by_decoding(tmp_path: Path, small: int) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier, small=small)
    header = header_of(tier, HURT, 2)
    put(">q", MAX_TIMESTAMP_AT, header.max_timestamp - 1)(tier, 2)
    tier.publish()
    assert checks_of(verify_here(tier, deep=True)) >= {Check.RECORD}


def test_every_damaged_segment_is_named_with_its_place(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier)
    tier.publish()
    for at in (0, 2):
        body = bytearray(tier.file(at).read_bytes())
        body[150] ^= 0xFF
        tier.file(at).write_bytes(body)
    report = verify_here(tier)
    assert {problem.key for problem in report.problems if problem.what == Check.BATCH_CRC} == {tier.key(0), tier.key(2)}
    assert all(problem.reason and problem.topic == "flights" for problem in report.problems)


def test_a_destroyed_object_does_not_drown_the_report(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    writer = Writer()
    tier.add(writer.plain(1) for _ in range(300))
    tier.publish()
    tier.file(0).write_bytes(bytes(len(tier.body(0))))
    report = verify_here(tier)
    assert report.failed and len(report.problems) < 100
