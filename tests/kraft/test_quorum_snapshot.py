"""Snapshots on disk and on the way between voters."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.snapshot_file import DamagedSnapshot, Snapshot, SnapshotFile, decode_snapshot, encode_snapshot
from kraft.quorum.snapshot_transfer import Arrived, SnapshotTransfer
from tests.kraft.memory_disk import MemoryDisk, PowerCut


def snapshot_at(index: int, state: bytes = b"state") -> Snapshot:
    return Snapshot(SnapshotBase((b"\0before", index - 1, 3), (b"\1", index, 4)), state)


def test_a_snapshot_comes_back() -> None:
    disk = MemoryDisk()
    file = SnapshotFile(disk, "quorum")
    assert file.read() is None
    file.write(encode_snapshot(snapshot_at(9)))
    disk.lose_power(random.Random(0))
    assert file.read() == snapshot_at(9)
    assert snapshot_at(9).end == (9, 4)


@given(st.data())
def test_any_changed_byte_is_found(data: st.DataObject) -> None:
    encoded = bytearray(encode_snapshot(snapshot_at(9)))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(bytes(encoded), "test")


@given(st.integers(0, 80))
def test_any_missing_end_is_found(size: int) -> None:
    encoded = encode_snapshot(snapshot_at(9))
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(encoded[: min(size, len(encoded) - 1)], "test")


def test_a_crash_at_any_operation_leaves_the_old_or_the_new_one() -> None:
    seen = set()
    for operation in range(6):
        for seed in range(8):
            disk = MemoryDisk()
            file = SnapshotFile(disk, "quorum")
            file.write(encode_snapshot(snapshot_at(9)))
            disk.operations_left = operation
            try:
                file.write(encode_snapshot(snapshot_at(20)))
            except PowerCut:
                disk.lose_power(random.Random(seed))
            found = file.read()
            assert found in (snapshot_at(9), snapshot_at(20))
            seen.add(found.end[0])
    assert seen == {9, 20}


def send_all(
    source: SnapshotTransfer, target: SnapshotTransfer, term: int, end: tuple[int, int] = (9, 4)
) -> Arrived | None:
    while True:
        part = source.next_part(2, term)
        target.setTransmissionData((term, *end, *part))
        if part.is_last:
            return target.take()


def test_parts_make_a_whole() -> None:
    source, target = SnapshotTransfer(7, 1 << 20), SnapshotTransfer(7, 1 << 20)
    source.offer(encode_snapshot(snapshot_at(9)), (9, 4))
    arrived = send_all(source, target, 5)
    assert arrived is not None
    assert arrived.snapshot == snapshot_at(9)
    assert target.take() is None


def test_parts_of_two_terms_are_not_mixed() -> None:
    source, target = SnapshotTransfer(7, 1 << 20), SnapshotTransfer(7, 1 << 20)
    source.offer(encode_snapshot(snapshot_at(9)), (9, 4))
    first = source.next_part(2, 5)
    target.setTransmissionData((5, 9, 4, *first))
    assert source.next_part(2, 6) == first  # a new term begins again
    target.setTransmissionData((6, 9, 4, *source.next_part(2, 6)))
    assert target.take() is None
    source.cancel(2)
    assert send_all(source, target, 6)


def test_a_missing_part_or_too_large_a_total_gives_nothing() -> None:
    source, target = SnapshotTransfer(7, 1 << 20), SnapshotTransfer(7, 10)
    source.offer(encode_snapshot(snapshot_at(9)), (9, 4))
    assert not send_all(source, target, 5)
    target = SnapshotTransfer(7, 1 << 20)
    target.setTransmissionData((5, 9, 4, *source.next_part(2, 5)))
    source.next_part(2, 5)
    assert not send_all(source, target, 5)


def test_a_snapshot_that_is_not_what_it_was_said_to_be_is_not_taken() -> None:
    source, target = SnapshotTransfer(7, 1 << 20), SnapshotTransfer(7, 1 << 20)
    source.offer(encode_snapshot(snapshot_at(9)), (9, 4))
    assert not send_all(source, target, 5, end=(10, 4))
    damaged = bytearray(encode_snapshot(snapshot_at(9)))
    damaged[-1] ^= 1
    source.offer(bytes(damaged), (9, 4))
    assert not send_all(source, target, 5)
