"""What `tidelog tier status` shows of a partition."""

from __future__ import annotations

from tidelog.commands.tier_status import _row
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
