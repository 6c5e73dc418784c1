"""README and the pages that go on from it, typed as they stand: an empty home, one cluster, one Spark session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brief_java import use_brief_java
from tests.documentation.pages import ALL, ROOT

PAGES = [
    "README.md", "docs/records.md", "docs/groups.md", "docs/doctor.md", "docs/spark.md", "docs/export.md",
    "docs/audit.md", "docs/spark-verify.md", "docs/security.md",
    "docs/install.md", "docs/kubernetes.md",
]  # fmt: skip
LEFT_OUT = {".venv", ".git", "tidelog-data"}
STAMPS = (".build", ".base", ".s3", ".spark", ".dev")  # of the Makefile: what it would install is there
LIMIT_S = 1800  # one minute of a machine with two free cores; no promise of how fast anything is


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory like a fresh clone in which `make` has installed everything already."""
    clone = tmp_path / "tidelog"
    environment = clone / ".venv"
    environment.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in LEFT_OUT and not path.name.endswith("_cache"):
            (clone / path.name).symlink_to(path)
    for path in Path(sys.prefix).iterdir():
        if path.name not in STAMPS:
            (environment / path.name).symlink_to(path)
    for name in STAMPS:
        (environment / name).touch()
    return clone


def newcomers(clone: Path) -> dict[str, str]:
    """Environment variables of somebody who has just logged in."""
    home = clone.parent / "home"
    home.mkdir()
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(one for one in os.environ["PATH"].split(os.pathsep) if one != own)
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "TMPDIR") if name in os.environ}
    use_brief_java(kept)  # it says nothing, and changes nothing of what is typed
    if "PYTHONPATH" in os.environ:  # the code under test, where it is not what the environment has installed
        kept["PYTHONPATH"] = str(ROOT)
    return kept | {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}


def alone() -> list[str]:
    """What gives a command all ports; nothing where that is not needed. Ends the test where it cannot be had."""
    isolated = ["unshare", "--map-root-user", "--net"]
    try:
        if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode == 0:
            return isolated
    except FileNotFoundError:
        pass
    for port in (9092, 9093, 9094, 10092):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} of README is taken, and there is no network namespace to be had")
    return []


@pytest.mark.processes
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_newcomer_types_the_pages(clone: Path) -> None:
    command = [*alone(), sys.executable, "-m", "tests.documentation.reader", str(clone), *PAGES]
    environment = newcomers(clone)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{rows[-1:]}\n{rows[-1]['why'] if rows else ''}\n{done.stderr}"
    assert {row["outcome"] for row in rows} <= {"ran", "shown", "without kcat"}
    assert [path for path in Path(environment["HOME"]).iterdir() if path.name != ".cache"] == []


def test_every_block_that_is_run_is_on_a_page_that_is_typed() -> None:
    assert {block.page for block in ALL if block.is_run} <= set(PAGES)
