"""`python -m bench.doc_tables`: writes the tables of measured figures in docs/ anew, from the results in bench/.

A table stands between `<!-- figures: NAME -->` and `<!-- end -->`. Nothing else of a page has figures of these runs, so
that after `make bench` this is all there is to do; a test fails while a page and the results are at odds.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.kora.evidence import ALL, row_of
from bench.kora.grid import SYSTEMS, p95_ms
from bench.kora.suite import SUITE
from bench.row_runs import COLUMNS, cells
from bench.rows import Row

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "bench" / "results", ROOT / "docs"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
KAFKA_CLIENTS = "kafka-clients"
KORA = "../kora/results"
TOPICS = {"1 KiB": "records-1k", "100 bytes": "records-100", "1 KiB, long, no cluster": "records-1k-long"}
WAYS = {
    "decoder alone, one core": "decoder, one core",
    "decoder alone, two cores": "decoder, two cores",
    "Spark, ready batches": "Spark, ready batches",
    "Spark from the tier": "Spark from the tier",
    "Spark from the tier, key": "of it the column `key`",
    "Spark from the brokers": "Spark from the brokers, its own connector",
}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(columns), "|".join(["---"] * len(columns)), *(" | ".join(row) for row in rows)]
    return "".join(f"|{line}|\n" if at == 1 else f"| {line} |\n" for at, line in enumerate(lines))


def kafka(found: Any) -> str:
    """What has a goal; the rest is in the file."""
    rows = [
        [
            row["load"],
            row["figure"],
            f"{statistics.median(row['kafka']):,.2f}",
            f"{statistics.median(row['tidelog']):,.2f}",
            f"{row['ratio']:.2f}",
            goal(row["goal"], row["met"]),
        ]
        for row in found["rows"]
        if row["goal"]
    ]
    return table(["load", "figure", "Apache Kafka", "Tidelog", "ratio", "goal"], rows)


def queries(found: Any) -> str:
    parts = []
    for name, topic in TOPICS.items():
        rows = []
        for row in found["rows"]:
            if row["topic"] != topic or row["way"] not in WAYS:
                continue
            brokers = "" if row["way"].startswith(("decoder", "Spark, ready")) else f"{row['broker_cpu_s']:.2f}"
            rows.append(
                [
                    WAYS[row["way"]],
                    f"{statistics.median(row['seconds']):.2f}",
                    f"{row['mb_s']:,.0f}",
                    f"{row['records_s'] / 1e3:,.0f}",
                    f"{row['cpu_s']:.2f}",
                    brokers,
                ]
            )
        parts.append(table([name, "s", "MB/s", "k records/s", "CPU s", "CPU s of all nodes"], rows))
    return "\n".join(parts)


def query_ratios(found: Any) -> str:
    goals = [
        [one["what"], f"{one['ratio']:.2f}", goal(f"{one['sign']} {one['bound']:g}", one["met"])]
        for one in found["goals"]
    ]
    told = {one["ratio"] for one in found["goals"]}
    others = [[name, f"{ratio:.2f}", ""] for name, ratio in found["figures"].items() if ratio not in told]
    return table(["", "ratio", "goal"], goals + others)


def compaction(found: Any) -> str:
    rows = [
        [
            f"{one['records']:,} records of {one['case']}, {one['kept']:,} stay",
            f"{statistics.median(one['job_s']):.2f}",
            f"{one['records_per_s']:,}",
            f"{statistics.median(one['plan_s']):.2f}",
            f"{one['ratio']:.1f}",
            goal(f">= {one['goal']:g}", one["met"]),
        ]
        for one in found
    ]
    return table(["", "job, s", "records/s", "plan, s", "times as fast", "goal"], rows)


def export(found: Any) -> str:
    rows = [
        [
            f"{one['records']:,} records: {one['case']}",
            f"{one['records_per_s']:,}",
            f"{one['log_mb_per_s']:,} MB/s",
            f"{one['ratio']:.1f} x",
            goal(f">= {one['goal']:g} x", one["met"]),
        ]
        for one in found
    ]
    return table(["", "records/s", "log", "beside the row writer", "goal"], rows)


def verify(found: Any) -> str:
    rows = []
    for one in found:
        speeds = [one["megabytes"] / statistics.median(one[name]) for name in ("plain_s", "two_s", "verify_s")]
        what = one["kind"] + (", `--deep`" if one["what"] == "deep" else "")
        told = goal(f">= {one['goal']:g}", one["met"])
        rows.append([what, *(f"{speed:,.0f}" for speed in speeds), f"{one['ratio']:.2f}", told])
    return table(["records", "plain loop", "two of them", "verify", "to one", "goal"], rows)


def rows_of(found: Any) -> str:
    """Of a benchmark made of `rows`, but for the one with a table of its own; a row's name stands before the first of
    its figures."""
    lines = []
    for row in (Row.from_json(one) for one in found["rows"] if one["name"] != KAFKA_CLIENTS):
        names = [f"`{row.name}`", *[""] * (len(row.figures) - 1)]
        told = zip(names, row.figures, strict=True)
        lines += [[name, *cells(one)[:-1], goal(one.goal, one.met)] for name, one in told]
    return table(["row", *COLUMNS], lines)


def kafka_clients(found: Any) -> str:
    """What the proxy is to a Kafka client: beside TLS and plaintext to the same broker, of latencies what it adds."""
    row = next(row for row in found["rows"] if row["name"] == KAFKA_CLIENTS)
    columns, rows = ["direct TLS", "direct plaintext"], []
    by_name: dict[str, dict[str, Any]] = {}
    for one in row["figures"]:
        if one["others"]:
            by_name.setdefault(f"{one['name']}, {one['unit']}", {})[one["beside"]] = one
    for name, beside in by_name.items():
        is_latency = name.endswith(" ms")
        one = beside[columns[0]]
        cells = [f"{statistics.median(one['values']):,.2f}"]
        for other in columns:
            pairs = list(zip(beside[other]["values"], beside[other]["others"], strict=True))
            told = (
                f"{statistics.median(ours - theirs for ours, theirs in pairs):+.2f}"
                if is_latency
                else f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f} x"
            )
            cells += [f"{statistics.median(beside[other]['others']):,.2f}", told]
        rows.append([name, *cells])
    return table(["", "the proxy", "direct TLS", "to it", "direct plaintext", "to it"], rows)


def kora(found: Any) -> str:
    """`found`: each row's results, by its name."""
    lines = []
    for name, evidence in SUITE.items():
        row = row_of(evidence, found[name]["parts"] if name in found else {})
        lines.append([f"`{name}`", row.what, row.published, row.seen, goal(row.goal, row.met)])
    return table(["row", "", "Kora's authors", "here", "goal"], lines)


def kora_grid(found: Any) -> str:
    """Each cell: p95 of Tidelog, of Apache Kafka, and the ratio, where both keep up."""
    cells = {(cell["partitions"], cell["rate"]): cell for cell in found["parts"][ALL]["cells"]}
    counts, rates = (sorted({key[at] for key in cells}) for at in (0, 1))

    def told(cell: dict[str, Any]) -> str:
        ours, theirs = (p95_ms(cell, system) for system in SYSTEMS)
        beside = "behind" if theirs is None else f"{theirs:,.1f}"
        times = "" if ours is None or theirs is None else f": {ours / theirs:.2f}"
        return f"{'behind' if ours is None else f'{ours:,.1f}'} / {beside}{times}"

    rows = [[f"{count:,}", *(told(cells[count, rate]) for rate in rates)] for count in counts]
    return table(["partitions", *(f"{rate:,} records/s" for rate in rates)], rows)


def kora_cells(found: Any) -> str:
    rows = []
    for one in found["parts"][ALL]["rows"]:
        loads = [f"{one[name]['cluster_load']:.2f}" for name in ("together", "cells")]
        rows.append([one["what"], *loads, f"{one['cluster_load_ratio']:.2f}", f"{one['busy_ratio']:.2f}"])
    return table(["", "load, all brokers", "load, cells", "ratio", "of busy time"], rows)


def kora_load(found: Any) -> str:
    rows = []
    for shape, part in found["parts"].items():
        for step in part["steps"]:
            loads = [f"{step[name]:.2f}" for name in ("load", "busy", "wait_ms")]
            times = [f"{step[name]:.1f}" for name in ("p50_ms", "p99_ms")]
            rows.append([shape, f"{step['offered']:.0%}", f"{step['rate']:,.0f}", *loads, *times])
    return table(["shape", "offered", "requests/s", "load", "busy", "wait ms", "p50 ms", "p99 ms"], rows)


def goal(text: str, met: bool) -> str:
    return text if met or not text else f"{text}, missed"


TABLES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "kafka": ("kafka-4.1.1.json", kafka),
    "queries": ("spark.json", queries),
    "query-ratios": ("spark.json", query_ratios),
    "compaction": ("spark_compaction.json", compaction),
    "export": ("spark_export.json", export),
    "verify": ("spark_verify.json", verify),
    KAFKA_CLIENTS: ("proxy.json", kafka_clients),
    "proxy": ("proxy.json", rows_of),
    "tier": ("tier.json", rows_of),
    "kora": (KORA, kora),
    "kora-grid": (f"{KORA}/grid.json", kora_grid),
    "kora-cells": (f"{KORA}/cells.json", kora_cells),
    "kora-load": (f"{KORA}/load.json", kora_load),
}
"""The file of results, or a folder of such files, and what makes a table of it, by the name that pages give it."""


def read(path: Path) -> Any:
    """Of a folder, each file's content by its name."""
    if path.is_dir():
        return {file.stem: json.loads(file.read_text()) for file in path.glob("*.json")}
    return json.loads(path.read_text())


def rewritten(page: str, results: Path = RESULTS) -> str:
    """The page with its tables as the results have them. KeyError for a table that nobody makes."""

    def block(match: re.Match[str]) -> str:
        file, made = TABLES[match[2]]
        return f"{match[1]}\n{made(read(results / file))}\n{match[3]}"

    return BLOCK.sub(block, page)


def main() -> None:
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text()
        if (new := rewritten(page)) != page:
            path.write_text(new)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
