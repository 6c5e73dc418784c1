"""The report as bytes: JSON for machines, Parquet for tables, a page for people. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_offload.running.job import Problem
from spark_offload.verification.page import page
from spark_offload.verification.report import PartitionReport, VerifyReport

JSON_FILE, PAGE_FILE = "report.json", "report.html"
PROBLEMS_FILE, PARTITIONS_FILE, CHECKS_FILE = "problems.parquet", "partitions.parquet", "checks.parquet"

_PROBLEMS = pa.schema(
    [
        ("severity", pa.string()),
        ("what", pa.string()),
        ("reason", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("position", pa.int64()),
    ]
)
_CHECKS = pa.schema(
    [
        ("name", pa.string()),
        ("unit", pa.string()),
        ("proves", pa.string()),
        ("checked", pa.int64()),
        ("failed", pa.int64()),
    ]
)
_SPAN = pa.struct([("start", pa.int64()), ("end", pa.int64())])


def report_files(report: VerifyReport, started: str) -> dict[str, bytes]:
    """By name; `started` is the time in words, for people."""
    return {
        JSON_FILE: (json.dumps(report.as_json(), indent=1) + "\n").encode(),
        PAGE_FILE: page(report, started).encode(),
        PROBLEMS_FILE: parquet(_problem_rows(report), _PROBLEMS),
        PARTITIONS_FILE: parquet([_partition_row(one) for one in report.partitions], partition_schema()),
        CHECKS_FILE: parquet([asdict(one) for one in report.checks], _CHECKS),
    }


def parquet(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def partition_schema() -> pa.Schema:
    """One row per partition, with the offsets that were seen."""
    types = {"topic": pa.string(), "topic_id": pa.string(), "partition": pa.int32(), "seconds": pa.float64()}
    names = [name for name in PartitionReport.__dataclass_fields__ if name != "covered"]
    fields = [(name, types.get(name, pa.int64())) for name in names]
    return pa.schema([*fields, ("covered", pa.list_(_SPAN))])


def _partition_row(one: PartitionReport) -> dict[str, Any]:
    row = asdict(one)
    row["covered"] = [{"start": start, "end": end} for start, end in one.covered]
    return row


def _problem_rows(report: VerifyReport) -> list[dict[str, Any]]:
    return [_row("damage", one) for one in report.problems] + [_row("notice", one) for one in report.notices]


def _row(severity: str, problem: Problem) -> dict[str, Any]:
    return {"severity": severity} | {name: getattr(problem, name) for name in _PROBLEMS.names if name != "severity"}
