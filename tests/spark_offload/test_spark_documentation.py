"""The examples of docs/spark.md run, in their order, as one script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from records.record import Record
from tests.spark_offload.tier_builder import NOW, TierBuilder, batch

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
FLIGHTS = [b'{"carrier": "UA", "delay": 4}', b'{"carrier": "AA", "delay": -2}', b'{"carrier": "UA", "delay": 8}']


def test_the_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tier = TierBuilder(tmp_path / "tier")
    for number in range(2):
        partition = tier.partition("flights", number)
        records = [Record(0, NOW + at, b"%d" % at, value, (("source", b"test"),)) for at, value in enumerate(FLIGHTS)]
        partition.add([batch(records, 0)])
        partition.publish()
    examples = EXAMPLE.findall(PAGE.read_text())
    assert len(examples) >= 6
    names: dict[str, Any] = {}
    for example in examples:
        code = example.replace("file:///srv/tidelog/tier", tier.uri).replace("/srv/checkpoints", str(tmp_path / "work"))
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["spark"] is spark
    assert names["delays"].collect() == [("AA", 2, -2.0), ("UA", 4, 6.0)]
    assert names["copied"] == 6
    assert "UA" in capsys.readouterr().out
