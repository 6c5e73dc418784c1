"""What the rows over Spark jobs share: options, a folder for data, the session, the file of results and exit codes."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bench.spark_jobs.made_tier import two_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Named(Protocol):
    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Named)
Figures = dict[str, Any]
"""Of one case, ready for JSON; among them `ratio`, the `goal` that it is held against, and `met`."""


@dataclass(frozen=True, slots=True)
class BenchRow(Generic[C]):
    """`name` is that of the module and, behind `spark_`, of the file of results. `measure` is given a folder of its own
    and how many rounds count, and hands back the figures of one case; `line` tells them to people."""

    name: str
    about: str
    cases: Sequence[C]
    measure: Callable[[SparkSession, C, Path, int], list[Figures]]
    line: Callable[[Figures], str]

    def main(self) -> int:
        """1 when a goal is missed; SystemExit(2) without Java. Only a run over all cases is kept as a result."""
        names = [case.name for case in self.cases]
        parser = argparse.ArgumentParser(
            prog=f"python -m bench.spark_jobs.{self.name}",
            description=self.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--only", action="append", choices=names, metavar="CASE", help=", ".join(names))
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--work", type=Path, help="a folder for data, on a fast disk; a temporary one")
        options = parser.parse_args()
        folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=options.work))
        found: list[Figures] = []
        try:
            with two_cores(folder) as spark:
                for at, case in enumerate(self.cases):
                    if case.name in (options.only or names):
                        found += self.measure(spark, case, folder / str(at), options.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for one in found:
            mark = "met" if one["met"] else "MISSED"
            print(f"{self.name}, {self.line(one)}: {one['ratio']:.2f} x, goal >= {one['goal']:g} x: {mark}")
        if not options.only:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"spark_{self.name}.json").write_text(json.dumps(found, indent=1) + "\n")
        return 0 if all(one["met"] for one in found) else 1


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
