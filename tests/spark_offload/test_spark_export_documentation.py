"""The catalog of docs/export.md that pyiceberg's configuration names, and one that it is told of by properties."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import spark_offload.export.job as export_job
from spark_offload.export.iceberg_table import file_system_properties
from spark_offload.export.options import ExportOptions
from spark_offload.options import OptionError
from spark_offload.running.job import SilentProgress
from tests.spark_offload.export_rows import table_of
from tests.spark_offload.session_here import HERE
from tests.spark_offload.tier_builder import TierBuilder, plain_batches

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


@pytest.fixture
def tier(tmp_path: Path) -> TierBuilder:
    """Two partitions of 30 records."""
    tier = TierBuilder(tmp_path / "tier")
    for number in range(2):
        partition = tier.partition("flights", number)
        partition.add(plain_batches(0, 30))
        partition.publish()
    return tier


def export(tier: TierBuilder, kind: str, **more: Any) -> ExportOptions:
    options = ExportOptions(tier=tier.uri, topics=("flights",), to=kind, **more)
    assert export_job.run(HERE, options, SilentProgress()).rows == 60
    return options


def rows_of_runs(options: ExportOptions, runs: int) -> list[int]:
    return [export_job.run(HERE, options, SilentProgress()).rows for _ in range(runs)]


def rows_in_table(options: ExportOptions) -> int:
    return len(table_of(options))


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
    warehouse = (("warehouse", (tmp_path / "lake").as_uri()),)
    options = ExportOptions(
        tier=tier.uri, topics=("flights",), to="iceberg", table="raw.flights", catalog="lake",
        catalog_properties=warehouse,
    )  # fmt: skip
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # pyiceberg reads its configuration when it is imported
        assert fresh.submit(rows_of_runs, options, 2).result() == [60, 0]
        assert fresh.submit(rows_in_table, options).result() == 60
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
