"""What a verification hands over: JSON, tables, a page, and the same from Spark's tasks as from here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet
import pytest

from spark_offload.running.job import SilentProgress, size_text
from spark_offload.verification.charts import covered
from spark_offload.verification.checks import PROBLEMS_PER_CHECK_MAX, WORDS, Check, Findings, Place
from spark_offload.verification.job import VerifyOptions, run
from spark_offload.verification.ledger import key_hash
from spark_offload.verification.report_files import PAGE_FILE, report_files
from tests.spark_offload.verification.verified_tier import VerifiedTier, checks_of, history, verify_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def damaged(tmp_path: Path) -> VerifiedTier:
    tier = VerifiedTier(tmp_path / "tier", topic="a<b")
    history(tier)
    tier.publish()
    tier.file(1).unlink()
    return tier


def test_the_files_say_what_the_report_says(tmp_path: Path) -> None:
    report = verify_here(damaged(tmp_path))
    files = report_files(report, "now")
    told = json.loads(files["report.json"])
    assert told["failed"] is True
    assert [one["what"] for one in told["problems"]] == [one.what for one in report.problems]
    problems = pyarrow.parquet.read_table(pa.BufferReader(files["problems.parquet"])).to_pylist()
    assert {one["key"] for one in problems if one["severity"] == "damage"} == {one.key for one in report.problems}
    (partition,) = pyarrow.parquet.read_table(pa.BufferReader(files["partitions.parquet"])).to_pylist()
    assert len(partition["covered"]) == 2 and partition["records"] == report.partitions[0].records
    checks = pyarrow.parquet.read_table(pa.BufferReader(files["checks.parquet"])).to_pylist()
    assert {one["name"]: one["failed"] for one in checks}[Check.OBJECT_MISSING] == 1


def test_the_page_is_whole_in_itself(tmp_path: Path) -> None:
    text = report_files(verify_here(damaged(tmp_path)), "now")[PAGE_FILE].decode()
    assert "a&lt;b-0" in text and "a<b" not in text
    assert "http" not in text and "<script" not in text and "are not as they should be" in text
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</body>") + len("</body>")])
    kinds = [rect.get("class") for rect in body.iter("rect")]
    assert "bad" in kinds and "good" in kinds and "speed" in kinds


def test_every_check_has_its_words() -> None:
    assert set(WORDS) == set(Check)


def test_the_documentation_names_every_check_and_hashes_keys_as_we_do() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark-verify.md").read_text()
    assert [check for check in Check if f"`{check}`" not in text] == []
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    assert names["key_hash"](b"e") == f"{key_hash(b'e'):016x}" and names["key_hash"](b"e") in text
    assert names["key_hash"](None) == ""


def test_missing_offsets_are_drawn_as_missing() -> None:
    assert covered(0, 10, [(0, 4), (6, 10)]) == [(0, 0.4, "good"), (0.4, 0.6, "bad"), (0.6, 1.0, "good")]
    assert covered(5, 5, []) == []
    assert covered(10, 20, [(0, 15)]) == [(0, 0.5, "good"), (0.5, 1.0, "bad")]


def test_spark_finds_what_is_found_here(spark: SparkSession, tmp_path: Path) -> None:
    tier = damaged(tmp_path)
    body = bytearray(tier.file(2).read_bytes())
    body[300] ^= 1
    tier.file(2).write_bytes(body)
    options = VerifyOptions(tier=tier.root.as_uri(), deep=True, split_bytes=1_000)
    report = run(spark, options, SilentProgress())
    here = verify_here(tier, deep=True, split_bytes=1_000)
    assert report.problems == here.problems and report.failed
    assert {Check.OBJECT_MISSING, Check.LOG_CHECKSUM} <= checks_of(report)
    assert [one.records for one in report.partitions] == [one.records for one in here.partitions]


def test_much_damage_in_one_object_hides_no_other_object() -> None:
    findings = Findings()
    for number in range(3 * PROBLEMS_PER_CHECK_MAX):
        place = Place("flights", 0, f"object-{number}")
        findings.fail(Check.OBJECT_MISSING, place, "the object is not there")
    one = Place("flights", 1, "destroyed")
    for offset in range(3 * PROBLEMS_PER_CHECK_MAX):
        findings.fail(Check.OFFSETS, one, "comes again", offset=offset)
    listed = [problem.what for problem in findings.problems]
    assert listed.count(Check.OBJECT_MISSING) == 3 * PROBLEMS_PER_CHECK_MAX
    assert listed.count(Check.OFFSETS) == PROBLEMS_PER_CHECK_MAX
    assert findings.failed[Check.OFFSETS] == 3 * PROBLEMS_PER_CHECK_MAX


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (173, "173 bytes"), (49_999, "50.0 KB"), (1_234_567, "1.2 MB"), (12_345_678_901, "12.35 GB")],
)
def test_a_small_size_is_no_rounded_nothing(size: float, text: str) -> None:
    assert size_text(size) == text
