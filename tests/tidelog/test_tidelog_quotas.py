"""`tidelog quotas`: rows of shares, and replays of recorded usage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tidelog.commands.quotas import about, app, recorded, share_rows


def report(seconds: int, broker: int, **rates: float | None) -> str:
    tenants = [{"tenant": name, "in_rate": rate, "out_rate": 1.0} for name, rate in rates.items()]
    return json.dumps({"time_ms": 1_000_000 + seconds * 1000, "broker": broker, "tenants": tenants})


LINES = [report(10 * at, broker, a=600.0 if broker == 0 else 10.0, b=1.0) for at in range(60) for broker in (0, 1, 2)]


def test_recorded_usage_is_read_by_interval() -> None:
    lines = [report(0, 1, a=5.0), report(3, 2, a=6.0), report(25, 1, a=7.9, b=None)]
    tenants, brokers = recorded(lines, "in_rate", {"a": 100, "*": 9}, {"b": 4})
    assert brokers == [1, 2]
    assert tenants["a"].intervals == [{1: 5, 2: 6}, {}, {1: 7}]
    assert (tenants["a"].quota, tenants["b"].quota, tenants["b"].reserved) == (100, 9, 4)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"time_ms": 1, "broker": 1, "tenants": [{}]}',
        "null",
        '{"time_ms": 1, "broker": 1, "tenants": [{"tenant": "a", "in_rate": Infinity}]}',
        report(101 * 86_400, 1, a=5.0),
        report(-101 * 86_400, 1, a=5.0),
        report(1 << 60, 1),
        "[" * 100_000,
    ],
)
def test_what_is_no_report_is_named_by_its_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        recorded([report(0, 1, a=5.0), line], "in_rate", {}, {})
    assert "line 2" in capsys.readouterr().err


@pytest.mark.parametrize(("policy", "unfair_s"), [("static", 600.0), ("dynamic", 10.0), ("lazy", 0.0)])
def test_what_if_shows_what_an_even_split_costs(policy: str, unfair_s: float, tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text("\n".join(LINES) + "\n")
    words = ["what-if", "--usage", str(file), "--policy", policy, "--quota", "*=900", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    rows = {row["tenant"]: row for row in json.loads(result.stdout)}
    assert rows["a"]["unfair_s"] <= unfair_s and rows["b"]["throttled_s"] == 0
    assert (rows["a"]["unfair_s"] == 600.0) is (policy == "static")


def what_if_of(usage: Path, *quotas: str) -> Result:
    words = [word for quota in quotas for word in ("--quota", quota)]
    return CliRunner().invoke(app, ["what-if", "--usage", str(usage), "--policy", "static", *words])


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x81\n"])
def test_a_file_without_reports_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_bytes(content)
    for usage in (file, tmp_path):
        result = what_if_of(usage, "a=1")
        assert result.exit_code == 2 and "within the objective" not in result.output


def test_a_quota_of_any_tenant_is_not_for_operators_and_a_tenant_without_a_report_is_named(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text(report(0, 1, **{"-": 900.0, "a": 5.0}))
    result = what_if_of(file, "*=10", "b=10")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["tenant", "a"]
    assert "no report has a tenant b" in result.stderr and "tenant a" not in result.stderr


@pytest.mark.parametrize("more", [[], ["--quota", "a"], ["--quota", "a=x"], ["--quota", "a=1", "--direction", "up"]])
def test_words_that_make_no_sense_are_refused(more: list[str], tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text(LINES[0])
    assert CliRunner().invoke(app, ["what-if", "--usage", str(file), "--policy", "lazy", *more]).exit_code == 2


def test_shares_have_a_row_for_each_broker_of_a_quota() -> None:
    brokers: list[dict[str, Any]] = [
        {"broker": 0, "used": 5, "share": 7, "target": 8},
        {"broker": 1, "used": None, "share": None, "target": None},
    ]
    quota = {"resource": "ingress", "quota": 9, "used": 5, "has_shares": True, "brokers": brokers}
    unlimited = quota | {"resource": "egress", "quota": 0}
    rows = share_rows([{"quotas": [quota, unlimited]}])
    assert [(row["resource"], row["broker"], row["broker_used"], row["share"]) for row in rows] == [
        ("ingress", 0, 5, 7),
        ("ingress", 1, None, None),
    ]


def test_what_explains_the_shares_is_said_beside_them() -> None:
    held, free = [{"share": 7}], [{"share": None}]
    assert [about("dynamic", held), "no broker has a share" in about("dynamic", free)] == ["", True]
    assert "would hold its target" in about("observe", held) and "even part" in about("static", held)
