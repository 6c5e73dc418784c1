"""Objects with mutated bytes: every one ends in findings, none in an exception."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from object_store.blocking import Coming
from object_store.errors import ObjectTruncated
from records.batch import iterate_batches, seal
from records.control import MarkerKind
from spark_offload.segments.sound_records import ACROSS_MIN, surely_sound
from spark_offload.verification.checks import Findings
from spark_offload.verification.ledger import NO_WRITES
from spark_offload.verification.partition_walk import PartitionWalk
from spark_offload.verification.piece_task import check_piece
from spark_offload.verification.pieces import Piece, TaskOptions
from spark_offload.verification.report import PartitionReport
from tests.spark_offload.verification.verified_tier import CODECS, VerifiedTier, Writer

CASES = 5_000  # drawn from fixed seeds, so each run repeats them
SHARES = 4


class NowOrNever:
    """Read when it is asked for."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self.result = read

    def cancel(self) -> None: ...


class OneObject:
    """A store of one object."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def begin_get(self, key: str, start: int = 0, length: int | None = None) -> Coming:
        return NowOrNever(lambda: self.get(key, start, length))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        end = len(self.body) if length is None else start + length
        if end > len(self.body):
            raise ObjectTruncated("store", "get", key, "it is cut")
        return self.body[start:end]


def small_tier(root: Path) -> VerifiedTier:
    tier, writer = VerifiedTier(root), Writer()
    batches = [writer.by(1 + n % 2, 2, CODECS[n % len(CODECS)]) for n in range(5)]
    batches += [writer.by(7, 2, transactional=True), writer.marker(7, MarkerKind.ABORT), writer.plain(3)]
    tier.add(batches)
    return tier


def mutated(body: bytes, log_bytes: int, chance: Random) -> bytes:
    """Bits, runs of bytes, cut or moved ends; half of the time with batches that are sealed again, so that what lies
    behind the CRC is reached."""
    data = bytearray(body)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        what = chance.randrange(5)
        if what < 3:
            data[at] ^= 1 << chance.randrange(8)
        elif what == 3:
            data[at : at + 8] = chance.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, chance.randbytes(8)])[
                : len(data) - at
            ]
        elif chance.random() < 0.2:
            del data[at : at + chance.randint(1, 40)]
            if not data:
                data.append(0)
    if chance.random() < 0.6:
        view = memoryview(bytes(data[:log_bytes]))
        try:
            for at, header in iterate_batches(view, 0, len(view), verify_crc=False):
                seal(data, at, header.size)
        except Exception:  # the mutation made no batches of it
            return bytes(data)
    return bytes(data)


@pytest.mark.parametrize("share", range(SHARES))
def test_mutated_objects_end_in_findings(tmp_path: Path, share: int) -> None:
    # In every second share records are seen to be sound together, as in large segments.
    glance = partial(surely_sound, across_min=1 if share % 2 else ACROSS_MIN)
    chance = Random(share)
    tier = small_tier(tmp_path)
    body, segment = tier.body(0), tier.written[0].segment
    settings = TaskOptions("", True, 512, 1 << 16)
    found = 0
    for _ in range(CASES // SHARES):
        damaged = mutated(body, segment.log_bytes, chance)
        parts = chance.choice([1, 1, 3])
        pieces = [
            Piece(0, "t", 0, "k", segment, len(damaged), number, parts, chance.random() < 0.3, NO_WRITES)
            for number in range(parts)
        ]
        results = [check_piece(OneObject(damaged), settings, piece, glance) for piece in pieces]
        findings = Findings()
        PartitionWalk(pieces[:1], {0: results}, 1000).run(PartitionReport("t", "", 0), findings)
        found += bool(findings.problems)
    assert found > CASES // SHARES * 0.95
