"""An exported folder is opened by readers that know nothing of it, without options."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from records.record import Record
from spark_offload.export.options import ExportOptions
from tests.spark_offload.export_rows import DAY_MS, data_files, export
from tests.spark_offload.tier_builder import NOW, TierBuilder, batch

ROWS = 12
NAMES = ("2013", "flights.eu-1")  # one that a reader of paths takes for a number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two topics of two partitions, each over two days."""
    tier = TierBuilder(tmp_path / "tier")
    for name in NAMES:
        for number in range(2):
            partition = tier.partition(name, number)
            partition.add([batch([Record(at, NOW + at % 2 * DAY_MS, b"k", b"v") for at in range(ROWS)], 0)])
            partition.publish()
    output = tmp_path / "lake"
    report = export(ExportOptions(tier=tier.uri, topics=NAMES, to="parquet", output=output.as_uri()))
    assert report.rows == len(NAMES) * 2 * ROWS
    return output


def test_pandas(folder: Path) -> None:
    table = pd.read_parquet(folder)
    assert sorted(table.groupby(["topic", "partition"]).size().items()) == [
        ((name, number), ROWS) for name in NAMES for number in range(2)
    ]
    assert (table["timestamp"].dt.strftime("%Y-%m-%d") == table["timestamp_day"].astype(str)).all()
    one_day = pd.read_parquet(folder, filters=[("timestamp_day", "==", str(table["timestamp_day"].iloc[0]))])
    assert len(one_day) == len(table) // 2


def test_a_file_alone_and_a_data_set(folder: Path) -> None:
    assert set(pq.read_schema(data_files(folder)[0]).names) >= {"topic", "partition", "offset"}
    found = ds.dataset(folder, partitioning="hive").to_table(filter=ds.field("topic") == NAMES[0])
    assert found.num_rows == 2 * ROWS


def test_duckdb(folder: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = f"select topic, count(*), count(distinct timestamp_day) from '{folder}/*/*.parquet' group by 1 order by 1"
    assert duckdb.sql(query).fetchall() == [(name, 2 * ROWS, 2) for name in NAMES]
