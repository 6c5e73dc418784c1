"""Plots of what was measured, as PNG files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WITHOUT, WITH = "#b0b0b0", "#3b6ea5"


@contextmanager
def plotted(path: Path, width: float = 7.0, height: float = 4.0, columns: int = 1) -> Iterator[list[Any]]:
    """The axes, from left to right, to be drawn on in the block; `path` is written at its end."""
    import matplotlib as mpl  # noqa: PLC0415  heavy

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
    try:
        yield list(axes[0])
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def bars(axes: Any, values: Mapping[str, float], form: str, label: str) -> None:
    """One lying bar for each value, the first on top and grey, with its figure beside it."""
    names = list(values)
    drawn = axes.barh(names, list(values.values()), color=[WITHOUT] + [WITH] * (len(names) - 1))
    axes.bar_label(drawn, fmt=f"{{:{form}}}", padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(label)
