"""A wheel in an empty environment is the whole product and nothing else, and serves."""

from __future__ import annotations

import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import free_ports
from release.distributions import build
from release.project import ROOT, version
from tests.packages.commands import tidelog

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = PROJECT["tool"]["importlinter"]["root_packages"]
RECORDS = 1_000


def shipped_of_tree() -> set[str]:
    """The code and the data of the rooms, as git has them."""
    names = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True)
    return {*names.stdout.splitlines(), "pyspark_tidelog.py"}


def test_the_wheel_has_every_file_of_every_room_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == shipped_of_tree()


def test_the_sdist_has_sources_locks_and_no_tests(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert shipped_of_tree() <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "requirements/base.lock"} <= names
    assert {name.split("/")[0] for name in names} & {"tests", "bench", "release"} == set()


def test_two_builds_of_a_commit_are_the_same_files(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    assert [made.read_bytes() for made in build(tmp_path)] == [made.read_bytes() for made in distributions]


@pytest.fixture
def cluster(installed: Path, tmp_path: Path) -> Iterator[list[str]]:
    """`tidelog` of the installed wheel, started from nowhere near the tree."""
    port = free_ports(1)
    program = str(installed / "tidelog")
    data = str(tmp_path / "data")
    tidelog(program, "up", "--data", data, "--port", str(port), "--detach", at=tmp_path)
    try:
        yield [program, data]
    finally:
        tidelog(program, "down", "--data", data, at=tmp_path)


@pytest.mark.processes
def test_a_record_goes_through_an_installed_cluster(cluster: list[str], tmp_path: Path) -> None:
    program, data = cluster
    lines = "".join(f"{number}\n" for number in range(RECORDS))
    tidelog(program, "topics", "create", "round-trip", "--partitions", "1", "--data", data, at=tmp_path)
    tidelog(program, "produce", "round-trip", "--data", data, at=tmp_path, text=lines)
    assert tidelog(program, "consume", "round-trip", "--exit", "--data", data, at=tmp_path) == lines


def test_the_command_says_the_version_of_the_project(installed: Path, tmp_path: Path) -> None:
    said = tidelog(str(installed / "tidelog"), "--version", at=tmp_path)
    assert said == f"tidelog {version()}\n"
