"""`tidelog spark verify` as an operator uses it: exit codes, files, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark_offload.verification.verified_tier import VerifiedTier, history
from tests.tidelog.test_tidelog_tier_rebuild import tidelog
from tidelog.version import VERSION
from tiering.bucket.verified import decode_verifications

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def test_a_whole_tier_then_a_damaged_one(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path / "tier")
    history(tier)
    tier.publish()
    words = ("spark", "verify", "--tier", tier.root.as_uri(), "--master", "local[1]")
    report, keys = tmp_path / "report", tmp_path / "keys.parquet"
    done = tidelog(*words, "--deep", "--report", str(report), "--keys", str(keys))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "no damage"
    names = ["checks.parquet", "partitions.parquet", "problems.parquet", "report.html", "report.json"]
    assert sorted(path.name for path in report.iterdir()) == names and keys.exists()
    tier.file(1).unlink()
    done = tidelog(*words, "--json", "--keys", str(keys), "--no-record")
    assert done.returncode == 1, done.stderr
    (run,) = decode_verifications((tier.root / tier.tier.verified_file).read_bytes()).runs
    assert (run.scope, run.deep, run.problems, run.version) == ("everything", True, 0, VERSION), (
        "by the first run alone"
    )
    told = json.loads(done.stdout)
    assert told["failed"] and "object_missing" in {problem["what"] for problem in told["problems"]}


def test_what_cannot_be_meant_is_refused_before_spark_begins(tmp_path: Path) -> None:
    words = ("spark", "verify", "--tier", tmp_path.as_uri())
    for wrong in (("--ledger", str(tmp_path / "none.csv")), ("--partitions", "x")):
        done = tidelog(*words, *wrong)
        assert done.returncode == 2, done.stdout
    (tmp_path / "ledger.csv").write_text("a,b\n1,2\n")
    done = tidelog(*words, "--ledger", str(tmp_path / "ledger.csv"))
    assert done.returncode == 2 and "the column topic" in done.stderr


def test_what_cannot_be_written_in_the_end_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    tier = VerifiedTier(tmp_path / "tier")
    history(tier)
    tier.publish()
    (tmp_path / "file").write_text("")
    for option, path in (("--report", "file"), ("--report", "file/report"), ("--keys", "none/keys.parquet")):
        done = tidelog("spark", "verify", "--tier", tier.root.as_uri(), option, str(tmp_path / path))
        assert done.returncode == 2 and done.stderr.startswith(f"tidelog: {option} {tmp_path / path}: "), done.stderr
