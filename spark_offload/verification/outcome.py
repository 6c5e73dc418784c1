"""Keeps a verification's outcome in the tier, where brokers can show it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from object_store.blocking import BlockingStore
from object_store.errors import StoreError
from spark_offload.verification.report import PartitionReport, VerifyReport
from tiering.bucket.keys import TierRoot
from tiering.bucket.verified import Run, TopicOutcome, keep_verification


def keep_outcome(tier: str, run: Run, report: VerifyReport) -> str:
    """Returns why it is not kept, such as a credential that may only read; empty if it is."""
    root = TierRoot(report.cluster_id)
    try:
        with BlockingStore(tier) as store:
            store.wait(lambda: keep_verification(store.store, root, run, topic_outcomes(run, report)))
    except (StoreError, ValueError) as error:
        return str(error)
    return ""


def with_totals(run: Run, report: VerifyReport) -> Run:
    """`run`, which says when it was and what was chosen, with what the report counts."""
    parts = report.partitions
    return replace(
        run,
        segments=sum(one.segments for one in parts),
        records=sum(one.records for one in parts),
        bytes=sum(one.log_bytes for one in parts),
        problems=report.failures,
        notices=len(report.notices),
    )


def topic_outcomes(run: Run, report: VerifyReport) -> list[TopicOutcome]:
    """By topic id. A topic's problems are those that the report lists, which may be fewer than it counts."""
    by_topic: dict[tuple[str, str], list[PartitionReport]] = {}
    for one in report.partitions:
        by_topic.setdefault((one.topic_id, one.topic), []).append(one)
    notices: dict[str, int] = {}
    for notice in report.notices:
        notices[notice.topic] = notices.get(notice.topic, 0) + 1
    return [
        _of_topic(run, topic, topic_id, parts, notices.get(topic, 0)) for (topic_id, topic), parts in by_topic.items()
    ]


def _of_topic(run: Run, topic: str, topic_id: str, parts: Sequence[PartitionReport], notices: int) -> TopicOutcome:
    return TopicOutcome(
        topic=topic,
        topic_id=topic_id,
        began_ms=run.began_ms,
        ended_ms=run.ended_ms,
        deep=run.deep,
        compared=run.compared,
        partitions=run.partitions,
        segments=sum(one.segments for one in parts),
        records=sum(one.records for one in parts),
        bytes=sum(one.log_bytes for one in parts),
        problems=sum(one.problems for one in parts),
        notices=notices,
    )
