"""What `tidelog tier status` shows of a partition."""

from __future__ import annotations

from tidelog.commands.tier_status import _row, _verified, _verified_lines
from tiering.bucket.verified import Run, TopicOutcome, Verifications
from tiering.shard.description import LedStatus

LED = {
    "topic": "flights",
    "topic_id": "00" * 16,
    "partition": 0,
    "leader_epoch": 1,
    "log_start_offset": 0,
    "local_log_start_offset": 0,
    "high_watermark": 10,
    "log_end_offset": 10,
    "claimed": True,
}


def test_a_partition_that_waits_says_for_what() -> None:
    waiting = LedStatus(**LED, failures=3, waits_for="brokers [7] have yet to report")  # type: ignore[arg-type]
    assert _row(1, waiting)["trouble"] == "3 failures in a row; brokers [7] have yet to report"
    assert _row(1, LedStatus(**LED))["trouble"] is None  # type: ignore[arg-type]


def test_the_last_verifications_of_all_and_of_a_topic() -> None:
    whole = Run(began_ms=1_000, ended_ms=61_000, deep=True, segments=3, records=5_000, bytes=80_000)
    part = Run(began_ms=70_000, ended_ms=71_500, topics=("flights",), topic_count=1, problems=1, notices=2)
    topic = TopicOutcome(topic="flights", topic_id="07" * 16, began_ms=70_000, ended_ms=71_500, problems=1)
    seen = Verifications(cluster_id="c", runs=(part, whole), topics=(topic,))
    of_whole = (
        "verification of everything: ended 1970-01-01T00:01:01Z after 60.0 s, every record, 3 segments, 5,000 records, "
        "80,000 bytes of log: no damage"
    )
    lines = _verified_lines(seen, None)
    assert lines[0].startswith("verification of topic flights: ended 1970-01-01T00:01:11Z after 1.5 s, every batch, ")
    assert lines[0].endswith(": 1 problem, 2 notices")
    assert lines[1:] == [of_whole]
    assert [line.split(":")[0] for line in _verified_lines(seen, "flights")] == ["verification of flights"]
    assert _verified_lines(seen, "planes") == [of_whole], "which had it too"
    assert _verified_lines(None, None) == []
    shown = _verified(seen, "planes")
    assert [one["covered"] for one in shown["runs"]] == ["topic flights", "everything"]
    assert shown["topics"] == []
    assert len(_verified(seen, "flights")["topics"]) == 1
    assert _verified(None, None) == {"runs": [], "topics": []}
