"""The examples of docs/export.md, and a catalog that pyiceberg is told of by properties."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import spark_offload.export.job as export_job
from spark_offload.export.options import ExportOptions
from spark_offload.job import SilentProgress
from tests.spark_offload.export_rows import table_of
from tests.spark_offload.tier_builder import TierBuilder, plain_batches

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def tier(tmp_path: Path, tasks_run_here: None) -> TierBuilder:
    """Two partitions of 30 records."""
    tier = TierBuilder(tmp_path / "tier")
    for number in range(2):
        partition = tier.partition("flights", number)
        partition.add(plain_batches(0, 30))
        partition.publish()
    return tier


def export(tier: TierBuilder, kind: str, **more: Any) -> ExportOptions:
    options = ExportOptions(tier=tier.uri, topics=("flights",), to=kind, **more)
    spark: Any = None
    assert export_job.run(spark, options, SilentProgress()).rows == 60
    return options


def test_the_examples_run(tier: TierBuilder, tmp_path: Path) -> None:
    export(tier, "parquet", output=(tmp_path / "lake" / "flights").as_uri())
    export(tier, "iceberg", output=(tmp_path / "lake" / "warehouse").as_uri())
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) == 2
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example.replace("/srv/lake", str(tmp_path / "lake")), str(PAGE), "exec"), names)
    names["catalog"].close()
    assert names["rows"] == 60
    assert names["flights"].num_rows == 30


def test_the_table_of_a_catalog_that_is_there(tier: TierBuilder, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    told = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.sqlite",
        "warehouse": (tmp_path / "lake").as_uri(),
    }
    options = export(tier, "iceberg", table="raw.flights", catalog_properties=tuple(told.items()))
    assert table_of(options).num_rows == 60
    assert list((tmp_path / "lake").rglob("*.parquet"))
