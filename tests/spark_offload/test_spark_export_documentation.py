"""The catalog of docs/export.md that pyiceberg's configuration names, and one that it is told of by properties."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

import spark_offload.export.job as export_job
from spark_offload.export.iceberg_table import file_system_properties
from spark_offload.export.options import ExportOptions
from spark_offload.options import OptionError
from spark_offload.running.job import SilentProgress
from tests.spark_offload.export_rows import table_of
from tests.spark_offload.tier_builder import TierBuilder, plain_batches

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


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


CONFIGURATION = re.compile(r"^```yaml\n(catalog:\n.*?)^```", re.MULTILINE | re.DOTALL)


def test_a_catalog_that_the_configuration_names(
    tier: TierBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page has it, but for the kind of the catalog; one more property is given beside it."""
    (tmp_path / "lake").mkdir()
    (text,) = CONFIGURATION.findall(PAGE.read_text())
    lines = [line for line in text.splitlines() if "credential:" not in line and "warehouse:" not in line]
    told = "\n".join(lines).replace("type: rest", "type: sql")
    told = told.replace("https://catalog.example.com", f"sqlite:///{tmp_path}/catalog.sqlite")
    (tmp_path / ".pyiceberg.yaml").write_text(told)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    warehouse = (("warehouse", (tmp_path / "lake").as_uri()),)
    for rows in (60, 0):
        options = ExportOptions(
            tier=tier.uri, topics=("flights",), to="iceberg", table="raw.flights", catalog="lake",
            catalog_properties=warehouse,
        )  # fmt: skip
        spark: Any = None
        assert export_job.run(spark, options, SilentProgress()).rows == rows
    catalog = load_catalog("lake", **dict(warehouse))
    assert catalog.load_table("raw.flights").scan().to_arrow().num_rows == 60
    catalog.close()
    assert list((tmp_path / "lake").rglob("*.parquet"))


def test_a_catalog_that_nothing_is_known_of_is_refused_without_its_properties(tier: TierBuilder) -> None:
    options = ExportOptions(
        tier=tier.uri, topics=("flights",), to="iceberg", catalog="nosuch",
        catalog_properties=(("credential", "client:hush"),),
    )  # fmt: skip
    with pytest.raises(OptionError, match="the catalog 'nosuch' cannot be opened") as refused:
        export_job.open_table(options)
    assert "hush" not in str(refused.value)


def test_executors_get_no_credentials_of_the_catalog() -> None:
    catalog = {
        "uri": "postgresql://me:hush@db", "credential": "client:hush", "token": "hush", "rest.sigv4-enabled": "true",
        "warehouse": "lake",
    }  # fmt: skip
    files = {"s3.endpoint": "http://s3", "s3.session-token": "of the table", "py-io-impl": "a.b", "client.region": "x"}
    assert dict(file_system_properties(catalog | files)) == files
    signed = dict(file_system_properties(catalog | files | {"s3.signer": "S3V4RestSigner"}))
    assert signed["token"] == "hush" and "credential" not in signed


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
