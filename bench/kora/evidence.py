"""What a row of `python -m bench.kora` is: how it is measured, part by part, and what its results say.

A row's results are in `results/NAME.json`: `parts`, what was measured, by part, and `dates`, the day of each. What the
table shows follows from `parts` alone, so that results and table cannot be at odds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results"
ALL = "all"
"""The only part of a row that is measured at once."""
Parts = Mapping[str, Any]


class CannotRun(Exception):
    """This machine lacks what the row needs; the text says what."""


class Row(NamedTuple):
    """`published`: what Kora's authors have shown. `seen`: what we see at our size. `goal`: "" where there is none."""

    what: str
    published: str
    seen: str
    goal: str = ""
    met: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """`row` and `plot` are given all parts. `minutes`: about how long all parts take."""

    name: str
    minutes: float
    parts: Mapping[str, Callable[[], Any]]
    row: Callable[[Parts], Row]
    plot: Callable[[Parts, Path], None] | None = None


def kept(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """The parts that have been measured, none if there is no such file."""
    path = results / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text())["parts"] if path.exists() else {}
    return found


def keep(name: str, part: str, found: Any, results: Path = RESULTS) -> dict[str, Any]:
    """Save what was measured for one part beside the others; return all parts."""
    path = results / f"{name}.json"
    saved = json.loads(path.read_text()) if path.exists() else {"dates": {}, "parts": {}}
    saved["dates"][part] = datetime.now(UTC).date().isoformat()
    saved["parts"][part] = found
    results.mkdir(exist_ok=True)
    path.write_text(json.dumps(saved, indent=1) + "\n")
    parts: dict[str, Any] = saved["parts"]
    return parts


def row_of(evidence: Evidence, parts: Parts) -> Row:
    """A row of which parts are missing has met nothing."""
    missing = [part for part in evidence.parts if part not in parts]
    if missing:
        return Row(evidence.name, "", f"not measured: {', '.join(missing)}", met=False)
    return evidence.row(parts)


def span(values: list[float], form: str = ".2f") -> str:
    """From the least to the greatest, or the one that there is."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
