"""The tier held against the audit in the bucket: its state, and why log starts moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from records.audit_event import AuditEvent, AuditKind, AuditSource
from spark_offload.running.job import Problem
from spark_offload.verification.checks import Check
from tests.spark_offload.verification.verified_tier import NOW, VerifiedTier, checks_of, history, verify_here


class State:
    """What `__tier_state` would have written of a tier."""

    def __init__(self, tier: VerifiedTier) -> None:
        self.tier = tier
        self.events: list[AuditEvent] = []

    def tell(self, event: AuditKind, *, cause: str = "", wall_ms: int = NOW, **fields: Any) -> None:
        self.events.append(
            AuditEvent(
                event=event,
                wall_ms=wall_ms,
                source=AuditSource.TIER,
                node=-1,
                incarnation="0/3",
                sequence=len(self.events),
                cause=cause,
                topic_id=self.tier.topic_id.hex(),
                partition=0,
                **fields,
            )
        )

    def log_start(self, offset: int, cause: str = "", **fields: Any) -> None:
        self.tell(AuditKind.TIER_PARTITION_CHANGED, cause=cause, after={"log_start_offset": offset}, **fields)

    def segment(self, at: int, state: str = "COPY_FINISHED", **changes: Any) -> None:
        segment = self.tier.written[at].segment
        after = {
            "base_offset": segment.base_offset,
            "uuid": segment.uuid,
            "state": state,
            "end_offset": segment.end_offset,
            "object_bytes": segment.object_bytes,
            "log_crc32c": segment.log_crc32c,
        }
        self.tell(AuditKind.TIER_SEGMENT_CHANGED, after=after | changes)

    def all_segments(self, skipped: Sequence[int] = ()) -> None:
        self.log_start(0)
        for at in range(len(self.tier.written)):
            if at not in skipped:
                self.segment(at, "COPY_STARTED", end_offset=-1)
                self.segment(at)

    def publish(self, **fields: Any) -> None:
        """With the manifest that shows all of it."""
        self.tier.audit(AuditSource.TIER, self.events)
        self.tier.publish(**{"tier_state_offset": len(self.events) - 1} | fields)


@pytest.fixture
def tier(tmp_path: Path) -> VerifiedTier:
    made = VerifiedTier(tmp_path)
    history(made)
    return made


def test_a_state_that_agrees_is_clean(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    tier.log_start = tier.written[0].segment.end_offset
    state.segment(0, "DELETE_STARTED")
    state.log_start(tier.log_start, "retention.bytes")
    state.publish()
    report = verify_here(tier)
    assert report.problems == [] and report.notices == []
    assert {check.name for check in report.checks} >= {Check.TIER_STATE, Check.LOG_START, Check.AUDIT}


def test_what_waits_to_be_deleted_or_is_copied_is_no_extra_object(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    end = tier.end
    for name, told in (("a" * 32, "DELETE_STARTED"), ("b" * 32, "COPY_STARTED")):
        state.tell(AuditKind.TIER_SEGMENT_CHANGED, after={"base_offset": 0, "uuid": name, "state": told})
        tier.write(tier.key(0).replace(f"{1:032x}", name), b"x")
    state.publish()
    assert verify_here(tier).problems == []
    assert tier.end == end


def test_a_segment_that_the_state_never_had(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments(skipped=[2])
    state.publish()
    report = verify_here(tier)
    assert checks_of(report) == {Check.TIER_STATE}
    assert [problem.offset for problem in report.problems] == [tier.written[2].segment.base_offset]


def test_a_segment_that_the_manifest_lacks(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    del tier.written[3]
    state.publish()
    assert checks_of(verify_here(tier)) == {Check.TIER_STATE}


def test_a_segment_of_another_size_than_the_state_says(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    state.segment(1, object_bytes=3)
    state.publish()
    assert checks_of(verify_here(tier)) == {Check.TIER_STATE}


def test_a_segment_that_the_state_deleted(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    state.segment(1, "DELETE_STARTED")
    state.publish()
    assert checks_of(verify_here(tier)) == {Check.TIER_STATE}


def test_a_manifest_that_is_older_than_the_state(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    before = len(state.events) - 3
    del tier.written[3]
    state.publish(tier_state_offset=before)
    assert checks_of(verify_here(tier)) == {Check.MANIFEST_STALE}


def test_a_log_start_that_nothing_moved(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    tier.log_start = 40
    state.publish()
    assert checks_of(verify_here(tier)) == {Check.LOG_START}


def test_a_log_start_that_was_moved_for_no_reason(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    tier.log_start = 40
    state.log_start(40, "a whim")
    state.publish()
    assert checks_of(verify_here(tier)) == {Check.LOG_START}


@pytest.mark.parametrize("retention", ["-1", "3600000"])
def test_retention_before_its_time(tier: VerifiedTier, retention: str) -> None:
    state = State(tier)
    state.all_segments()
    tier.publish()
    tier.version = 2
    tier.log_start = tier.written[0].segment.end_offset
    state.segment(0, "DELETE_STARTED")
    state.log_start(tier.log_start, "retention.ms", wall_ms=NOW + 1_000_000)
    state.publish()
    assert verify_here(tier).problems == []
    tier.set_config(retention_ms=retention)
    assert checks_of(verify_here(tier)) == {Check.LOG_START}
    tier.set_config(retention_ms="1000")
    assert verify_here(tier).problems == []


def test_a_log_start_without_any_audit_is_told(tier: VerifiedTier) -> None:
    tier.log_start = 40
    tier.publish()
    report = verify_here(tier)
    assert report.problems == [] and [notice.what for notice in report.notices] == [Check.LOG_START]


def test_a_hole_in_the_audit(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    tier.publish(tier_state_offset=len(state.events) - 1)
    tier.audit(AuditSource.TIER, state.events[:4])
    tier.audit(AuditSource.TIER, state.events[6:], first=6)
    assert Check.AUDIT in checks_of(verify_here(tier))


def test_a_damaged_file_of_the_audit(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    state.publish()
    (file,) = (tier.root / tier.tier.audit_prefix).rglob("*.events")
    file.write_bytes(file.read_bytes()[:-20])
    report = verify_here(tier)
    assert checks_of(report) == {Check.AUDIT} and report.problems[0].key.endswith(file.name)


def test_what_brokers_say_is_taken_in(tier: VerifiedTier) -> None:
    tier.publish()
    problem = Problem(Check.TIER_STATE, "manifest: it does not name a segment", "flights", 0)
    assert verify_here(tier, ask=lambda path: [problem]).problems == [problem]
    assert verify_here(tier, ask=lambda path: []).problems == []


def test_the_audit_of_a_cluster_that_was_replaced_does_not_count(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments(skipped=[2])
    state.publish()
    assert verify_here(tier).failed
    file = {"format": 1, "cluster_id": "cluster-one", "incarnation": 2, "created_ms": NOW, "changed_ms": NOW + 1}
    tier.write(tier.tier.cluster_file, json.dumps(file).encode())
    assert verify_here(tier).problems == []


def test_a_manifest_that_shows_more_than_was_exported_is_not_doubted(tier: VerifiedTier) -> None:
    state = State(tier)
    state.all_segments()
    tier.audit(AuditSource.TIER, state.events)
    gone = tier.written.pop(3)
    tier.publish(tier_state_offset=len(state.events) + 5, end_offset=tier.end)
    assert verify_here(tier).problems == []
    assert gone.segment.base_offset == tier.end
