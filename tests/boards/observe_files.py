"""The files that Prometheus and Grafana read: `python -m tests.boards.observe_files` writes them.

They are in docker/observe, and the same in the Helm chart, because Helm reads no file outside of a chart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.boards.alarms import BURNS, STATES, Alarm
from tests.boards.objectives import BASES, BUDGET, OBJECTIVES, WINDOWS, series
from tests.boards.operator_board import OPERATOR_BOARD
from tests.boards.panels import Board, board_json
from tests.boards.tenant_board import TENANT_BOARD
from tests.boards.tier_board import TIER_BOARD

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "docker" / "observe"
IN_CHART = ROOT / "charts" / "tidelog" / "observe"
RULES = OBSERVE / "rules"
BOARDS = (OPERATOR_BOARD, TENANT_BOARD, TIER_BOARD)
PAGE = "docs/monitoring.md"
HEAD = "# Made by `python -m tests.boards.observe_files`.\n"


def files() -> dict[Path, str]:
    """Every file with its text."""
    made = observed()
    return made | {IN_CHART / path.relative_to(OBSERVE): text for path, text in made.items()}


def observed() -> dict[Path, str]:
    """Those in docker/observe."""
    found = {OBSERVE / "boards" / f"{board.uid}.json": _board(board) for board in BOARDS}
    found[RULES / "objectives.yml"] = HEAD + _objectives()
    found[RULES / "alarms.yml"] = HEAD + _group("tidelog-alarms", map(_alarm, STATES))
    found[RULES / "burning.yml"] = HEAD + _group("tidelog-burning", map(_alarm, BURNS))
    return found


def _board(board: Board) -> str:
    return json.dumps(board_json(board), indent=2) + "\n"


def _objectives() -> str:
    rules = [_record(name, expr) for name, expr in BASES.items()]
    rules += [_record(BUDGET, f"vector({one.budget:g})", one.slo) for one in OBJECTIVES]
    rules += [
        _record(series(window), one.errors.replace("WINDOW", window), one.slo)
        for one in OBJECTIVES
        for window in WINDOWS
    ]
    return _group("tidelog-objectives", rules)


def _group(name: str, rules: Iterable[str]) -> str:
    return f"groups:\n  - name: {name}\n    rules:\n" + "".join(rules)


def _record(name: str, expr: str, slo: str = "") -> str:
    labels = f"        labels: {{ slo: {slo} }}\n" if slo else ""
    return f"      - record: {name}\n        expr: {json.dumps(expr)}\n{labels}"


def _alarm(alarm: Alarm) -> str:
    return (
        f"      - alert: {alarm.name}\n"
        f"        expr: {json.dumps(alarm.expr)}\n"
        f"        for: {alarm.lasting}\n"
        f"        labels: {{ severity: {alarm.severity} }}\n"
        "        annotations:\n"
        f"          summary: {json.dumps(alarm.summary)}\n"
        f"          docs: {PAGE}#{alarm.section.lower()}\n"
    )


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
