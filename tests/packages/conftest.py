"""The packages, built once, and an environment with nothing but what they bring."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from release.distributions import build
from release.project import ROOT

HASH = re.compile(r" \\\n *--hash=\S+|^#.*\n", re.MULTILINE)


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment outside of the tree in which pip has installed the wheel, in the locked versions."""
    place = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    locked = place / "locked.txt"
    locked.write_text(HASH.sub("", (ROOT / "requirements" / "base.lock").read_text()))
    command: list[str | Path] = [
        place / "venv" / "bin" / "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "-c",
        locked,
    ]
    done = subprocess.run([*command, distributions[1]], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode and "connection" in done.stderr.lower():
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    return place / "venv" / "bin"
