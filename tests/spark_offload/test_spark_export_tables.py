"""Tables of exports: their columns, what is refused, and what others may do to them. Tasks run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from records.record import Record
from spark_offload.export.iceberg_table import EXPORTED, open_catalog
from spark_offload.export.table_columns import ValueFormat
from spark_offload.export.tables import TableMismatch
from spark_offload.options import OptionError
from tests.spark_offload.export_rows import (
    KINDS,
    data_files,
    export,
    make_segments,
    offsets_in,
    options_for,
    table_of,
)
from tests.spark_offload.tier_builder import NOW, TierBuilder, batch, plain_batches


@pytest.fixture
def tier(tmp_path: Path) -> TierBuilder:
    return TierBuilder(tmp_path / "tier")


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_that_was_made_again_is_another_one(tier: TierBuilder, kind: str) -> None:
    for number in (1, 2):
        partition = tier.partition("flights", topic_id=number)
        partition.add(plain_batches(0, 50))
        partition.publish(dropped_ms=NOW if number == 1 else 0)
        options = options_for(tier, kind)
        if number == 1:
            partition.publish()
        export(options)
        if number == 1:
            partition.publish(dropped_ms=NOW)
    assert offsets_in(options) == sorted([*range(50)] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_values_as_columns_and_what_no_schema_fits(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    values = [b'{"delay": 1.5, "day": "x"}', b"nonsense", None, b'{"delay": "late"}', b'{"delay": null}']
    times = [NOW, -(2**60), 2**62, 253_402_300_800_000, -62_135_596_800_001]
    records = [Record(0, moment, b"k", value) for value, moment in zip(values, times, strict=True)]
    partition.add([batch([record], at) for at, record in enumerate(records)])
    partition.publish()
    options = options_for(tier, kind, values=ValueFormat("json", "delay double, day string"))
    report = export(options)
    assert not report.failed
    assert (report.rows, report.undecoded) == (5, 2)
    rows = sorted(table_of(options).to_pylist(), key=lambda row: row["offset"])
    told = [(row["delay"], row["day"], row["tombstone"], row["undecoded_value"]) for row in rows]
    assert told == [
        (1.5, "x", False, None),
        (None, None, False, b"nonsense"),
        (None, None, True, None),
        (None, None, False, b'{"delay": "late"}'),
        (None, None, False, None),
    ]
    assert [row["timestamp"].year for row in rows] == [2023, 1, 9999, 9999, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_added_and_never_changed(tier: TierBuilder, kind: str) -> None:
    partition = tier.partition("flights")
    partition.add([batch([Record(0, NOW, b"k", b'{"a": 1, "b": "x"}')], 0)])
    partition.publish()
    export(options_for(tier, kind, values=ValueFormat("json", "a int")))
    for ddl in ("b string", "a bigint, b string", "a string"):
        with pytest.raises(TableMismatch):
            export(options_for(tier, kind, values=ValueFormat("json", ddl)))
    partition.add([batch([Record(0, NOW, b"k", b'{"a": 2, "b": "y"}')], 1)])
    partition.publish()
    options = options_for(tier, kind, values=ValueFormat("json", "a int, b string"))
    assert not export(options).failed
    rows = sorted(table_of(options).to_pylist(), key=lambda row: row["offset"])
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (2, "y")]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("csv", {}),
        ("parquet", {"topics": ()}),
        ("parquet", {"output": ""}),
        ("parquet", {"output": "http://x"}),
        ("parquet", {"table": "a.b"}),
        ("parquet", {"partitions": "x"}),
        ("parquet", {"file_bytes": 1}),
        ("parquet", {"orphan_hours": -1}),
        ("parquet", {"values": ValueFormat("json", "a nothing")}),
        ("iceberg", {"output": ""}),
        ("iceberg", {"table": "a"}),
        ("iceberg", {"topics": ("a", "b")}),
        ("iceberg", {"output": "s3://bucket/x"}),
        ("iceberg", {"catalog": "mine"}),
        ("iceberg", {"output": "", "catalog": "mine", "catalog_file": "x"}),
    ],
)
def test_what_cannot_be_meant_is_refused(tier: TierBuilder, kind: str, wrong: dict[str, Any]) -> None:
    make_segments(tier, 1)
    with pytest.raises(OptionError):
        export(options_for(tier, kind, **wrong))
    assert not data_files(tier.root.parent)


def test_a_commit_that_nobody_here_wrote_is_not_taken_for_one(tier: TierBuilder) -> None:
    make_segments(tier, 1)
    options = options_for(tier, "parquet")
    export(options)
    commits = tier.root.parent / "parquet" / "_commits"
    for nonsense in (b"", b"{}", b"\xff", (commits / f"{1:020}.json").read_bytes()):
        (commits / f"{2:020}.json").write_bytes(nonsense)
        with pytest.raises(ValueError, match=f"{2:020}"):
            export(options)


def test_an_iceberg_table_that_others_change_keeps_what_it_knows(tier: TierBuilder) -> None:
    make_segments(tier, 1, partitions=2)
    options = options_for(tier, "iceberg")
    export(options)
    partition = tier.partition("flights")
    partition.add(plain_batches(0, 50))
    partition.add(plain_batches(50, 50))
    partition.versions = 1
    partition.publish()
    export(options)
    catalog = open_catalog(options)
    try:
        table = catalog.load_table(options.table_name)
        table.delete("partition == 1")  # a snapshot of somebody else
        assert export(options).rows == 0
        assert (offsets_in(options, 0), offsets_in(options, 1)) == (list(range(100)), [])
        first = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        table.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        assert offsets_in(options) == list(range(50))
        assert export(options).rows == 50
        assert offsets_in(options) == list(range(100))
        table.refresh().delete("partition == 1")
        current = table.refresh().metadata.current_snapshot()
        assert current is not None
        assert current.summary is not None
        assert EXPORTED not in current.summary.additional_properties
        others = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != current.snapshot_id]
        table.maintenance.expire_snapshots().by_ids(others).commit()
        assert export(options).rows == 0
    finally:
        catalog.close()
    assert (offsets_in(options, 0), offsets_in(options, 1)) == (list(range(100)), [])
