"""The report as one HTML page for people, whole in itself: no script, no file beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from spark_offload.running.job import Problem, size_text
from spark_offload.verification.charts import ROWS_MAX, Bar, bars, covered
from spark_offload.verification.report import PartitionReport, VerifyReport

PROBLEMS_MAX = 2_000
_STYLE = """
:root { color-scheme: light dark; --good: #2e7d5b; --bad: #c0392b; --note: #b07d10; --soft: #8883; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { padding: .6rem 1rem; border-radius: .4rem; color: #fff; background: var(--good); }
.verdict.failed { background: var(--bad); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
td, th { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--soft); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.failed td { color: var(--bad); font-weight: 600; } td.key { word-break: break-all; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { width: 100%; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
svg .end { text-anchor: end; } svg .back { fill: var(--soft); } svg .good { fill: var(--good); }
svg .bad { fill: var(--bad); } svg .before { fill: #8888; } svg .speed { fill: #3b6ea5; }
"""


def page(report: VerifyReport, started: str) -> str:
    """`started` is the time in words."""
    verdict = f"{report.failures:,} things are not as they should be" if report.failed else "No damage was found"
    depth = "every record was decoded" if report.deep else "every batch was looked at"
    body = [
        f"<h1>Verification of {escape(report.store)}, cluster {escape(report.cluster_id)}</h1>",
        f'<p class="verdict{" failed" if report.failed else ""}">{verdict}.</p>',
        f"<p>{escape(started)}, {report.seconds:.1f} s: {size_text(report.bytes_read)} at "
        f"{size_text(report.bytes_per_s)}/s; {depth}.</p>",
        "<h2>What was checked</h2>",
        _checks(report),
        _ledger(report),
    ]
    if report.problems:
        more = report.failures - min(len(report.problems), PROBLEMS_MAX)
        body += ["<h2>What failed, and where</h2>", _problems(report.problems[:PROBLEMS_MAX])]
        body += [f"<p>and {more:,} more of the same kinds and places</p>"] if more > 0 else []
    body += ["<h2>Partitions</h2>", *_charts(report.partitions), _partitions(report.partitions)]
    if report.notices:
        body += ["<h2>Worth knowing</h2>", _problems(report.notices[:PROBLEMS_MAX])]
    title = f"Verification of {escape(report.cluster_id)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _checks(report: VerifyReport) -> str:
    rows = [
        _row([one.name, f"{one.checked:,} {one.unit}", f"{one.failed:,}", one.proves], "failed" if one.failed else "")
        for one in report.checks
    ]
    return _table(["check", "looked at", "failed", "what is proven"], rows)


def _ledger(report: VerifyReport) -> str:
    ledger = report.ledger
    if ledger is None:
        return ""
    names = ["writes", "there", "below the log start", "not tiered yet", "compacted or erased", "lost"]
    values = [ledger.writes, ledger.present, ledger.below_log_start, ledger.not_tiered, ledger.explained, ledger.lost]
    return "<h2>Acknowledged writes</h2>" + _table(names, [_row([f"{value:,}" for value in values])])


def _problems(problems: Sequence[Problem]) -> str:
    rows = [
        _row(
            [
                f"{one.topic}-{one.partition}" if one.partition >= 0 else one.topic,
                "" if one.offset < 0 else str(one.offset),
                one.what,
                one.reason,
                one.key,
                "" if one.position < 0 else str(one.position),
            ]
        )
        for one in problems
    ]
    return _table(["partition", "offset", "check", "reason", "object", "byte"], rows)


def _charts(partitions: Sequence[PartitionReport]) -> Iterable[str]:
    worst = sorted(partitions, key=lambda one: (-one.problems, one.name))[:ROWS_MAX]
    rows = [
        Bar(one.name, covered(one.log_start, one.end, one.covered), f"{one.log_start:,} to {one.end:,}")
        for one in worst
    ]
    yield bars("Offsets that were seen (red: missing)", rows)
    largest = sorted(partitions, key=lambda one: -one.object_bytes)[:ROWS_MAX]
    most = max((max(one.object_bytes, one.bytes_before) for one in largest), default=0) or 1
    yield bars("Size in the tier", [_size(one, most) for one in largest])
    busy = [one for one in largest if one.seconds > 0]
    speeds = {one.name: one.log_bytes / one.seconds for one in busy}
    fastest = max(speeds.values(), default=0) or 1
    rows = [Bar(name, [(0, speed / fastest, "speed")], f"{size_text(speed)}/s") for name, speed in speeds.items()]
    yield bars("Speed of a task", rows)


def _size(one: PartitionReport, most: int) -> Bar:
    note = size_text(one.object_bytes)
    if not one.bytes_before:
        return Bar(one.name, [(0, one.object_bytes / most, "good")], note)
    before = one.object_bytes - one.bytes_after + one.bytes_before
    return Bar(
        one.name,
        [(0, min(before / most, 1.0), "before"), (0, one.object_bytes / most, "good")],
        f"{note}, was {size_text(before)}",
    )


def _partitions(partitions: Sequence[PartitionReport]) -> str:
    names = ["partition", "log start", "end", "segments", "rewritten", "batches", "records", "MB", "problems"]
    rows = []
    for one in partitions:
        numbers = [one.log_start, one.end, one.segments, one.rewritten, one.batches, one.records]
        cells = [one.name, *(f"{value:,}" for value in numbers), f"{one.object_bytes / 1e6:,.1f}", f"{one.problems:,}"]
        rows.append(_row(cells, "failed" if one.problems else ""))
    return _table(names, rows)


def _table(names: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cells: Sequence[str], kind: str = "") -> str:
    inside = "".join(f"<td{_kind(cell)}>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{kind}">{inside}</tr>' if kind else f"<tr>{inside}</tr>"


def _kind(cell: str) -> str:
    if cell.replace(",", "").replace(".", "").isdecimal():
        return ' class="number"'
    return ' class="key"' if "/" in cell and " " not in cell else ""
