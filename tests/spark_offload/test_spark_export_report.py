"""What a person is told of an export, beside what `--json` has."""

from __future__ import annotations

from spark_offload.export.report import ExportReport, PartitionReport
from spark_offload.running.job import Problem

TROUBLE = [
    Problem("damaged", "wrong CRC", "flights", 1, 50, "a/b.segment", 61),
    Problem("beaten", "another run was faster"),
]


def test_trouble_is_told_without_json_too() -> None:
    told = [problem.line() for problem in TROUBLE]
    nothing_else = ExportReport(run="r", to="parquet", table="t", problems=TROUBLE)
    assert nothing_else.lines() == told
    gone_on = ExportReport(run="r", to="parquet", table="t", version="1", problems=TROUBLE)
    gone_on.partitions = [
        PartitionReport(
            topic="flights", partition=1, exported=[(0, 50)], missed=[(50, 100)], gone=[(3, 4)], undecoded=2
        )
    ]
    lines = gone_on.lines()
    assert lines[-2:] == told
    assert lines[3:6] == [
        "  2 values could not be decoded: undecoded_value",
        "  gone before they were exported: offsets 3 to 3",
        "  could not be read: offsets 50 to 99",
    ]


def test_files_that_were_removed_are_told_though_nothing_was_new() -> None:
    report = ExportReport(run="r", to="parquet", table="t", swept=3)
    assert report.lines() == ["t: nothing new to export", "3 files that no commit names were removed"]
