"""The page docs/metrics.md: `python -m tests.common.metrics_page` writes it, a test compares it."""

from __future__ import annotations

from pathlib import Path

from common.metric_catalogue.catalogue import AREAS
from common.metric_catalogue.metric import Area, Metric

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
HEAD = """# Metrics

Every metric that nodes show at `/metrics`, with what it means and what to do about it. [Monitoring](monitoring.md) says
how to scrape them, and has the boards and alarms. A metric is in one catalogue (`common/metric_catalogue`), from which
the pages of the nodes, this page and the tests of boards and alarms derive; a node cannot show one that is not in it.

Labels do not grow with what clients send: each has a bound on the values that one page names, shown as "up to". What is
beyond is summed under `others`, or left out and counted. Counters count since the start of their process. Names that
end in `_timestamp_seconds`, `_ends_seconds` and `_expires_seconds` are moments, in seconds since 1970.

<!-- made by `python -m tests.common.metrics_page` -->
"""


def page() -> str:
    return HEAD + "".join(_section(area) for area in AREAS)


def _section(area: Area) -> str:
    rows = "".join(_row(metric) for metric in area.metrics)
    labels = {label: None for metric in area.metrics for label in metric.labels}
    named = "".join(f"- `{label.name}`: {label.meaning}. Up to {label.values:,}.\n" for label in labels)
    head = "| metric | kind, unit | meaning | what to do |\n|---|---|---|---|\n"
    return f"\n## {area.title}\n\n{area.text}\n\n{head}{rows}" + (f"\nLabels:\n{named}" if named else "")


def _row(metric: Metric) -> str:
    labels = ",".join([*(label.name for label in metric.labels), *(["…"] if metric.own_labels else [])])
    name = metric.name + (f"{{{labels}}}" if labels else "")
    kind = metric.kind + (f", {metric.unit}" if metric.unit else "")
    return f"| `{name}` | {kind} | {metric.meaning} | {metric.act} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
