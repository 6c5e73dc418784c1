"""Resolve the dependencies of pyproject.toml into lock files: names, versions and hashes, no addresses."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = [
    "--quiet",
    "--generate-hashes",
    "--no-emit-options",
    "--no-header",
    "--no-annotate",
    "--strip-extras",
    "--allow-unsafe",
    "--upgrade",
]
CONSOLE = ["--extra", "console"]
DEV = [word for extra in ("dev", "s3", "spark", "export", "java", "console") for word in ("--extra", extra)]

BESIDE_DEV = ["--constraint", "requirements/dev.lock"]  # they go into the same environment


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-tools"], check=True)
        locks: list[tuple[str, list[str]]] = [
            ("build.lock", ["requirements/build.in"]),
            ("base.lock", [*CONSOLE, "pyproject.toml"]),
            ("s3.lock", ["--extra", "s3", *CONSOLE, "pyproject.toml"]),
            ("spark.lock", ["--extra", "spark", "--extra", "export", "--extra", "s3", *CONSOLE, "pyproject.toml"]),
            ("java.lock", ["--extra", "java", "pyproject.toml"]),
            ("dev.lock", [*DEV, "pyproject.toml"]),
            ("docs.lock", [*BESIDE_DEV, "--extra", "docs", "pyproject.toml"]),
            ("packages.lock", [*BESIDE_DEV, "--extra", "packages", "pyproject.toml"]),
        ]
        for name, sources in locks:
            out = f"requirements/{name}"
            subprocess.run([python, "-m", "piptools", "compile", *COMMON, "-o", out, *sources], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
