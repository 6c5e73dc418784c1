"""`tidelog spark package | script`: what a Spark cluster is given to run the jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import tidelog
from tidelog.output import fail


def package(target: Annotated[Path, typer.Argument(help="The zip file to write.", metavar="FILE")]) -> None:
    """Write Tidelog's code as one zip file for --py-files; what it depends on has to be on the executors."""
    from tidelog.spark_jobs.code_archive import write_archive  # noqa: PLC0415

    try:
        count = write_archive(target)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}")
    print(f"{target}: {count} files, {target.stat().st_size:,} bytes")


def script() -> None:
    """Print where the file lies that spark-submit is given."""
    print(Path(tidelog.__file__).with_name("spark_submit.py"))
