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
    "--no-emit-index-url",
    "--no-emit-trusted-host",
    "--no-emit-find-links",
    "--no-header",
    "--no-annotate",
    "--strip-extras",
    "--allow-unsafe",
    "--upgrade",
]
DEV = [word for extra in ("dev", "s3", "spark", "export", "java") for word in ("--extra", extra)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-tools"], check=True)
        locks: list[tuple[str, list[str]]] = [
            ("build.lock", ["requirements/build.in"]),
            ("base.lock", ["pyproject.toml"]),
            ("s3.lock", ["--extra", "s3", "pyproject.toml"]),
            ("spark.lock", ["--extra", "spark", "--extra", "export", "--extra", "s3", "pyproject.toml"]),
            ("java.lock", ["--extra", "java", "pyproject.toml"]),
            ("dev.lock", [*DEV, "pyproject.toml"]),
        ]
        for name, sources in locks:
            out = f"requirements/{name}"
            subprocess.run([python, "-m", "piptools", "compile", *COMMON, "-o", out, *sources], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
