"""Planted damage in the bucket itself, one kind each: objects and manifests cut, lost, swapped, added, gone back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.checksum import crc32c
from spark_offload.verification.checks import Check
from tests.spark_offload.verification.verified_tier import (
    VerifiedTier,
    checks_of,
    history,
    verify_here,
)
from tiering.exports.exports import POSITIONS
from tiering.manifests.manifest import PageRef, encode_page

HURT = 1
"""The segment of four that the damage is in."""
LENGTH_AT, EPOCH_AT, MAGIC_AT, ATTRIBUTES_AT, LAST_DELTA_AT, MAX_TIMESTAMP_AT = 8, 12, 16, 21, 23, 35
PRODUCER_EPOCH_AT, SEQUENCE_AT, COUNT_AT = 51, 53, 57


def bit_in_the_object(tier: VerifiedTier) -> None:
    body = bytearray(tier.file(HURT).read_bytes())
    body[200] ^= 1
    tier.file(HURT).write_bytes(body)


def cut_object(tier: VerifiedTier) -> None:
    body = tier.file(HURT).read_bytes()
    tier.file(HURT).write_bytes(body[: len(tier.written[HURT].log) // 2])


def object_without_its_sections(tier: VerifiedTier) -> None:
    tier.file(HURT).write_bytes(tier.written[HURT].log)


def removed_object(tier: VerifiedTier) -> None:
    tier.file(HURT).unlink()


def empty_object(tier: VerifiedTier) -> None:
    tier.file(HURT).write_bytes(b"")


def extra_object(tier: VerifiedTier) -> None:
    name = tier.key(HURT).replace(f"{HURT + 1:032x}", "e" * 32)
    tier.write(name, tier.body(HURT))


def old_copy_that_nobody_took_away(tier: VerifiedTier) -> None:
    name = tier.key(HURT).replace(f"{HURT + 1:032x}", "e" * 32).replace(tier.key(HURT)[-60:-40], f"{tier.end:020d}")
    tier.write(name, b"x", age_s=200_000)


def object_of_no_name(tier: VerifiedTier) -> None:
    tier.write(f"{tier.tier.partition_prefix(tier.path)}notes.txt", b"x")


def swapped_objects(tier: VerifiedTier) -> None:
    one, other = tier.file(1).read_bytes(), tier.file(2).read_bytes()
    tier.file(1).write_bytes(other)
    tier.file(2).write_bytes(one)


def manifest_that_is_cut(tier: VerifiedTier) -> None:
    file = tier.root / tier.tier.manifest_key(tier.path, 1)
    file.write_bytes(file.read_bytes()[:-100])


def manifest_of_another_topic(tier: VerifiedTier) -> None:
    tier.publish_manifest(topic="planes")


def manifest_that_went_back(tier: VerifiedTier) -> None:
    tier.publish_manifest(version=2, end_offset=tier.written[2].segment.end_offset, segments=[
        one.segment for one in tier.written[:3]
    ])  # fmt: skip


def stale_manifest(tier: VerifiedTier) -> None:
    position = {
        "event": "position",
        "topic": tier.topic,
        "topic_id": tier.topic_id.hex(),
        "partition": 0,
        "leader_epoch": 3,
        "log_start_offset": 0,
        "high_watermark": tier.end + 100,
        "tier_end_offset": tier.end + 50,
    }
    tier.export(POSITIONS, [position])


def page_that_is_another(tier: VerifiedTier) -> None:
    segments = [one.segment for one in tier.written[:2]]
    page = encode_page(segments)
    ref = PageRef(
        uuid="a" * 32,
        base_offset=0,
        end_offset=segments[-1].end_offset,
        count=2,
        size=len(page),
        crc32c=crc32c(page) ^ 1,
    )
    tier.write(tier.tier.page_key(tier.path, ref.uuid), page)
    tier.publish_manifest(version=2, pages=[ref], segments=[one.segment for one in tier.written[2:]])


def no_manifest(tier: VerifiedTier) -> None:
    for at in range(4):
        tier.write(tier.key(at), tier.body(at), age_s=200_000)
    (tier.root / tier.tier.manifest_key(tier.path, 1)).unlink()


LATER: dict[Callable[[VerifiedTier], None], Check] = {
    bit_in_the_object: Check.LOG_CHECKSUM,
    cut_object: Check.OBJECT_SIZE,
    object_without_its_sections: Check.SECTION,
    removed_object: Check.OBJECT_MISSING,
    empty_object: Check.OBJECT_SIZE,
    extra_object: Check.OBJECT_EXTRA,
    old_copy_that_nobody_took_away: Check.OBJECT_EXTRA,
    object_of_no_name: Check.OBJECT_EXTRA,
    swapped_objects: Check.OFFSETS,
    manifest_that_is_cut: Check.MANIFEST,
    manifest_of_another_topic: Check.MANIFEST,
    manifest_that_went_back: Check.MANIFEST,
    stale_manifest: Check.MANIFEST_STALE,
    page_that_is_another: Check.MANIFEST,
    no_manifest: Check.MANIFEST,
}


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
@pytest.mark.parametrize("plant", LATER, ids=lambda plant: plant.__name__)
def test_damage_to_the_bucket_is_found(tmp_path: Path, plant: Callable[[VerifiedTier], None], deep: bool) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier)
    tier.publish()
    plant(tier)
    report = verify_here(tier, deep=deep)
    assert LATER[plant] in checks_of(report), report.lines()
    assert report.failed


# what only decoding shows ----------------------------------------------------------------------------------
