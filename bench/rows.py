"""What a row of a benchmark says: figures, each with what it is compared with in the same run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

AT_MOST, AT_LEAST = "<=", ">="


@dataclass(slots=True)
class Figure:
    """One value per round, and what stands beside it. `ratio` is the median of the rounds' own ratios.

    Rounds are compared each with its own neighbour in time, because a shared machine drifts between rounds.
    """

    name: str
    unit: str
    values: list[float]
    beside: str = ""
    others: list[float] = field(default_factory=list)
    ratio: float | None = None
    goal: str = ""
    met: bool = True


def figure(
    name: str,
    unit: str,
    values: Sequence[float],
    beside: str = "",
    others: Sequence[float] = (),
    goal: tuple[str, float] | None = None,
) -> Figure:
    """A figure with the ratio values : others, held against `goal`."""
    made = Figure(name, unit, [round(value, 3) for value in values], beside, [round(other, 3) for other in others])
    if others:
        ratio = statistics.median(value / other for value, other in zip(values, others, strict=True))
        made.ratio = round(ratio, 3)
        if goal is not None:
            sign, bound = goal
            made.goal = f"{sign} {bound:g}"
            made.met = ratio >= bound if sign == AT_LEAST else ratio <= bound
    return made


@dataclass(slots=True)
class Scene:
    """What a row runs with: sizes and durations are multiplied by `scale`; `say` prints a line of progress."""

    work: Path
    scale: float
    rounds: int
    say: Callable[[str], None]

    def sized(self, count: float, least: int = 1) -> int:
        return max(least, int(count * self.scale))


@dataclass(slots=True)
class Row:
    """A finished row. `load` is the machine's load average at its begin and end."""

    name: str
    scale: float
    revision: str
    seconds: float
    load: list[float]
    figures: list[Figure]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Row:
        return Row(**{**raw, "figures": [Figure(**one) for one in raw["figures"]]})


def load_average() -> float:
    return round(os.getloadavg()[0], 1)
