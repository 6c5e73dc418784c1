"""Tests' Java uses an archive of classes where there is one, and leaves options that somebody gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import brief_java


@pytest.mark.parametrize(("archive", "is_used"), [(None, False), (b"", False), (b"classes", True)])
def test_an_archive_is_used_where_java_could_make_one(tmp_path: Path, archive: bytes | None, is_used: bool) -> None:
    path = tmp_path / "spark-classes.jsa"
    if archive is not None:
        path.write_bytes(archive)
    environment: dict[str, str] = {}
    brief_java.use_brief_java(environment, path)
    assert set(environment) == {brief_java.SUBMITTED, brief_java.DAEMONS}
    for options in (*environment.values(), brief_java.executors(path)):
        assert brief_java.QUICK in options
        assert (str(path) in options) == is_used


def test_options_that_are_there_stay() -> None:
    environment = {brief_java.SUBMITTED: "-Xmx2g"}
    brief_java.use_brief_java(environment)
    assert environment[brief_java.SUBMITTED] == "-Xmx2g"


def test_where_java_makes_no_archive_an_empty_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "spark-classes.jsa"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # neither Spark nor its Java is found
    (tmp_path / "pyspark.py").write_text("raise ImportError('none here')\n")
    brief_java.make_archive(path)
    assert list(tmp_path.glob("*.jsa")) == [path]
    assert path.read_bytes() == b""
