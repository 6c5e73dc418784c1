"""`python -m bench.spark_jobs`: all rows over Spark jobs, one process after another. Ends 1 when one misses a goal."""

from __future__ import annotations

import argparse
import subprocess
import sys

ROWS = ("compaction", "verify", "export")


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark_jobs", description=__doc__)
    parser.add_argument("--only", choices=ROWS, action="append", help="this row; may be given several times")
    chosen = parser.parse_args().only or ROWS
    codes = []
    for row in chosen:
        print(f"{row}:", flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"bench.spark_jobs.{row}"], check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
