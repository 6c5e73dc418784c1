"""The last verifications of the tier, as brokers report them, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.moments import utc

if TYPE_CHECKING:
    from tiering.bucket.verified import Outcome, Run, TopicOutcome, Verifications
    from tiering.shard.description import BrokerTier


def newest(brokers: Iterable[BrokerTier]) -> Verifications | None:
    """Brokers read the store at different times. None if no broker has seen a verification."""
    found = [broker.verified for broker in brokers if broker.verified is not None and broker.verified.last is not None]
    return max(found, key=lambda one: one.last.ended_ms if one.last is not None else 0, default=None)


def runs_to_show(found: Verifications) -> list[Run]:
    """The last one, the last one over everything, and those whose damage no later one has disproved."""
    shown = dict.fromkeys(found.runs[:1])
    shown |= dict.fromkeys([run for run in found.runs if run.is_whole][:1])
    shown |= dict.fromkeys(run for run in found.runs if run.problems)
    return list(shown)


def last_of_topics(found: Verifications) -> dict[str, TopicOutcome]:
    """By topic id; one with damage counts before a later one that looked less closely."""
    chosen: dict[str, TopicOutcome] = {}
    for one in found.topics:
        if one.topic_id not in chosen or (one.problems and not chosen[one.topic_id].problems):
            chosen[one.topic_id] = one
    return chosen


def outcome_text(one: Outcome) -> str:
    """`ended 2013-07-01T12:00:00Z after 1.5 s, every record, 3 segments, 5 records, 80 bytes of log`."""
    seen = "every record" if one.deep else "every batch"
    compared = f", compared with {' and '.join(one.compared)}" if one.compared else ""
    partitions = f" of partitions {one.partitions}" if one.partitions else ""
    return (
        f"ended {utc(one.ended_ms)} after {(one.ended_ms - one.began_ms) / 1000:,.1f} s, {seen}{partitions}{compared}, "
        f"{one.segments:,} segments, {one.records:,} records, {one.bytes:,} bytes of log"
    )


def result_text(one: Outcome) -> str:
    notices = f", {one.notices:,} {'notice' if one.notices == 1 else 'notices'}" if one.notices else ""
    if one.problems:
        return f"{one.problems:,} {'problem' if one.problems == 1 else 'problems'}{notices}"
    return f"no damage{notices}"
