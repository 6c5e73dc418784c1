"""The jobs under spark-submit: `spark-submit … spark_submit.py JOB OPTIONS`, with the options of `tidelog spark JOB`.

spark-submit takes a file, not a module; `tidelog spark script` prints where this one lies. Master, deploy mode and
settings are those of spark-submit. docs/spark-clusters.md has examples.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    # a package, not a search path
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != FOLDER]
    from tidelog.commands.spark import app  # noqa: PLC0415  now it is found in the right place

    app(prog_name="tidelog spark")


if __name__ == "__main__":
    main()
