"""What a person is told of a compaction run."""

from __future__ import annotations

from spark_offload.compaction.report import FAILED, SWAPPED, UNCHANGED, CompactionReport, PartitionRow
from spark_offload.running.job import Problem


def row(partition: int, state: str, before: int = 0, after: int = 0) -> PartitionRow:
    return PartitionRow(
        topic="planes",
        partition=partition,
        state=state,
        start=0,
        end=100,
        records=100,
        keys=7,
        readings=1,
        superseded=0,
        without_key=0,
        tombstones_dropped=0,
        aborted_dropped=0,
        bytes_read=1_000,
        segments_before=2,
        segments_after=1,
        bytes_before=before,
        bytes_after=after,
        milliseconds=5,
    )


def test_a_run_with_nothing_to_do_says_so_in_one_line() -> None:
    (line,) = CompactionReport(seconds=0.001).lines()
    assert line == "nothing to compact: no compacted topic among what was chosen has anything in the tier"
    assert CompactionReport(partitions=[row(0, UNCHANGED)], seconds=0.5).lines() == [
        "nothing to compact in 1 partition"
    ]
    rows = [row(number, UNCHANGED) for number in range(3)]
    report = CompactionReport(partitions=rows, seconds=0.5)
    assert report.lines() == ["nothing to compact in 3 partitions"]
    assert len(report.as_json()["partitions"]) == 3


def test_trouble_is_told_beside_what_was_done() -> None:
    problem = Problem("damaged", "wrong CRC", "planes", 1)
    report = CompactionReport(problems=[problem], seconds=0.5)
    assert report.lines() == [problem.line(), "nothing was compacted"]
    report.partitions = [row(0, UNCHANGED), row(1, FAILED)]
    assert [line.split(",")[0] for line in report.lines()] == [
        "planes-0 offsets 0 to 100: unchanged",
        "planes-1 offsets 0 to 100: failed",
        problem.line(),
        "0 of 2 partitions compacted",
    ]
    report.partitions.append(row(2, SWAPPED, before=3_000, after=1_000))
    assert report.lines()[-1] == "1 of 3 partitions compacted, 3,000 to 1,000 bytes, 600 records/s"
