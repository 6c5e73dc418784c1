"""Rows of `tidelog load` and `tidelog usage record` from what the brokers have reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from tidelog.commands.usage import appending, busiest, by_tenant, new_rounds


def tenant(tenant_id: str, rate: float | None, **fields: Any) -> dict[str, Any]:
    counters = {"connections": 1, "attempts": 2, "bytes_in": 10, "bytes_out": 20, "requests": 3, "busy_ns": 4}
    rates = {"in_rate": rate, "out_rate": rate, "request_rate": rate, "busy_share": rate, "load": rate}
    return {"id": tenant_id, "tenant": tenant_id, "throttled_ms": {}} | counters | rates | fields


def broker(number: int, *tenants: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"broker": number, "epoch": 5, "round": 1, "tenants": list(tenants), "partitions": []} | fields


def test_a_tenant_is_added_up_over_its_brokers() -> None:
    rows = by_tenant(
        [
            broker(0, tenant("a", 1.0, throttled_ms={"disk": 5}), tenant("b", 9.0), tenant("c", 1.0)),
            broker(1, tenant("a", 2.5, throttled_ms={"disk": 1, "connection_rate": 2}), tenant("c", None)),
        ]
    )
    b, a, c = rows
    assert [row["id"] for row in rows] == ["b", "a", "c"], "the busiest first"
    assert (a["load"], c["load"]) == (3.5, None)
    assert (a["in_rate"], a["bytes_in"], a["connections"], a["brokers"]) == (3.5, 20, 2, [0, 1])
    assert a["throttled_ms"] == {"disk": 6, "connection_rate": 2}
    assert (c["in_rate"], c["bytes_out"]) == (None, 40), "a sum with an unknown part is unknown"
    assert (b["in_rate"], b["brokers"]) == (9.0, [0])


def test_the_busiest_partition_comes_first() -> None:
    def row(partition: int, rate: float) -> dict[str, Any]:
        return {"topic": "t", "partition": partition, "in_rate": rate, "out_rate": 0.0}

    rows = busiest([broker(0, partitions=[row(0, 1.0), row(1, 7.0)]), broker(1, partitions=[row(2, 3.0)])])
    assert [(one["partition"], one["broker"]) for one in rows] == [(1, 0), (2, 1), (0, 0)]


def test_a_round_is_recorded_once() -> None:
    kept: dict[int, tuple[int, int]] = {}
    assert [row["broker"] for row in new_rounds(kept, [broker(0), broker(1), broker(2, round=0)])] == [0, 1]
    assert new_rounds(kept, [broker(0), broker(1)]) == []
    assert [row["broker"] for row in new_rounds(kept, [broker(0, round=2), broker(1, epoch=6)])] == [0, 1]


@pytest.mark.parametrize("out", ["", "absent/usage.jsonl"])
def test_a_file_that_cannot_be_written_is_named(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        appending(tmp_path / out)
    assert f"--out {tmp_path / out}: " in capsys.readouterr().err
