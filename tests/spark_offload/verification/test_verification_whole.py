"""Undamaged tiers: nothing is found, whatever their logs went through."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_offload.options import OptionError
from spark_offload.running.job import SilentProgress
from spark_offload.verification.checks import Check
from tests.spark_offload.verification.verified_tier import (
    NOW,
    VerifiedTier,
    Writer,
    history,
    verify_here,
)
from tiering.bucket.sealed import sealed
from tiering.bucket.verified import Verifications, decode_verifications


@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_found_in_a_whole_tier(tmp_path: Path, deep: bool) -> None:
    tier = VerifiedTier(tmp_path)
    writer = history(tier, 6)
    tier.publish()
    report = verify_here(tier, deep=deep)
    assert report.problems == [] and report.notices == []
    (partition,) = report.partitions
    assert (partition.log_start, partition.end) == (0, writer.offset)
    assert partition.covered == [(0, writer.offset)]
    assert partition.records == writer.offset
    assert partition.decoded == (writer.offset if deep else 0)
    counted = {check.name: check.checked for check in report.checks}
    assert counted[Check.SEQUENCE] and counted[Check.TRANSACTION_INDEX] and counted[Check.OFFSET_INDEX]
    assert not report.failed


def test_parts_of_a_segment_say_the_same_as_the_whole(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier)
    tier.publish()
    whole, parts = verify_here(tier), verify_here(tier, split_bytes=1_000, chunk_bytes=1_500)
    assert parts.problems == []
    for one, other in zip(whole.partitions, parts.partitions, strict=True):
        assert (one.records, one.batches, one.covered) == (other.records, other.batches, other.covered)
    ours = {one.name: one.checked for one in whole.checks if one.name != Check.SEQUENCE}
    assert ours == {one.name: one.checked for one in parts.checks if one.name != Check.SEQUENCE}


def test_a_log_start_within_a_segment_is_no_gap(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier)
    tier.log_start = tier.written[1].segment.base_offset + 3
    tier.publish()
    assert verify_here(tier, deep=True).problems == []


def test_what_brokers_compacted_may_have_gaps(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    writer = Writer()
    batches = [writer.by(1) for _ in range(20)]
    tier.add(batch for number, batch in enumerate(batches) if number % 3 != 1)
    tier.publish()
    assert verify_here(tier).failed
    tier.set_config(cleanup_policy="compact")
    assert verify_here(tier, deep=True).problems == []


def test_a_bucket_without_the_topic_is_refused(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier, 1)
    tier.publish()
    for topics in (("other",), (tier.topic, "other")):
        with pytest.raises(OptionError, match=r"cluster cluster-one, holds nothing of topic 'other'$"):
            verify_here(tier, topics=topics)
    with pytest.raises(OptionError, match=f"holds nothing of topic '{tier.topic}' with the id {7:032x}$"):
        verify_here(tier, topics=(tier.topic,), topic_id=f"{7:032x}")
    with pytest.raises(OptionError, match="holds nothing of what was chosen"):
        verify_here(tier, tenant="nobody")


def test_a_bucket_without_the_partition_is_refused(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path, number=1)
    history(tier, 1)
    tier.publish()
    with pytest.raises(OptionError, match=f"topic '{tier.topic}' has no partition 9: the tier has 0 to 1 of it"):
        verify_here(tier, topics=(tier.topic,), partitions="1,9")
    with pytest.raises(OptionError, match=f"holds nothing of topic '{tier.topic}' in these partitions$"):
        verify_here(tier, topics=(tier.topic,), partitions="0")
    assert len(verify_here(tier, topics=(tier.topic,), partitions="0-1").partitions) == 1


def kept(tier: VerifiedTier) -> Verifications:
    return decode_verifications((tier.root / tier.tier.verified_file).read_bytes())


def test_the_outcome_is_kept_beside_the_tier_and_is_no_damage(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier)
    tier.publish()
    report = verify_here(tier, deep=True, version="1.2.3")
    (run,), (topic,) = kept(tier).runs, kept(tier).topics
    assert (run.is_whole, run.deep, run.problems, run.version) == (True, True, 0, "1.2.3")
    assert (topic.topic, topic.topic_id) == (tier.topic, tier.topic_id.hex())
    (partition,) = report.partitions
    for one in (run, topic):
        assert (one.segments, one.records, one.bytes) == (partition.segments, partition.records, partition.log_bytes)
        assert NOW < one.began_ms <= one.ended_ms
    tier.file(1).unlink()
    again = verify_here(tier, topics=(tier.topic,))
    assert {one.what for one in again.problems} == {Check.OBJECT_MISSING}, "the file itself is not reported"
    last = kept(tier).last
    assert last is not None
    assert (last.scope, last.deep, last.problems) == (f"topic {tier.topic}", False, again.failures)
    assert [(one.deep, one.problems) for one in kept(tier).topics] == [(False, again.partitions[0].problems), (True, 0)]


def test_no_outcome_is_kept_where_that_is_not_wanted(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier, 1)
    tier.publish()
    verify_here(tier, record=False)
    assert not (tier.root / tier.tier.verified_file).exists()


def test_an_outcome_that_cannot_be_kept_is_noted_and_fails_nothing(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path)
    history(tier, 1)
    tier.publish()
    body = sealed(b'{"format":2}')
    tier.write(tier.tier.verified_file, body)
    notes = Notes()
    assert not verify_here(tier, notes=notes).failed
    assert notes.texts == [
        "the outcome is not kept in the tier, where the cluster could show it: a later version wrote it, in format 2"
    ]
    assert (tier.root / tier.tier.verified_file).read_bytes() == body


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)
