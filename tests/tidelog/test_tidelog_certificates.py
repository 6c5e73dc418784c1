"""`tidelog certificates`: what it makes, what it leaves alone, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tidelog.test_tidelog_command import tidelog


def test_a_second_run_changes_nothing_and_a_new_name_adds(tmp_path: Path) -> None:
    authority, into = tmp_path / "authority", tmp_path / "nodes"
    words = ("certificates", "make", "--authority", str(authority), "--into", str(into))
    assert tidelog(*words, "broker-0", "broker-1=broker-1,10.0.0.7").returncode == 0
    made = {path.name: path.read_bytes() for path in into.iterdir()}
    assert sorted(made) == ["broker-0.pem", "broker-1.pem", "ca.pem"]
    assert (authority / "ca.pem").read_bytes() == made["ca.pem"]
    assert tidelog(*words, "broker-0", "broker-1=10.0.0.7", "broker-2").returncode == 0
    assert {name: (into / name).read_bytes() for name in made} == made
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in [*into.iterdir(), *authority.iterdir()])
    rows = json.loads(tidelog("certificates", "list", str(into), "--json").stdout)
    assert [(row["file"], row["role"], row["hosts"]) for row in rows] == [
        ("broker-0.pem", "node", ["broker-0"]),
        ("broker-1.pem", "node", ["broker-1", "10.0.0.7"]),
        ("broker-2.pem", "node", ["broker-2"]),
        ("ca.pem", "authority", []),
    ]


def test_an_authority_that_lost_its_key_is_not_replaced(tmp_path: Path) -> None:
    assert tidelog("certificates", "make", "--into", str(tmp_path), "node-0").returncode == 0
    (tmp_path / "ca.key").unlink()
    done = tidelog("certificates", "make", "--into", str(tmp_path), "node-1")
    assert done.returncode == 1
    assert "is there without" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "node-1.pem").exists()


def test_bad_usage_is_told(tmp_path: Path) -> None:
    for words in (["--role", "king", "a"], ["a/b"], ["=a"], ["ca"]):
        done = tidelog("certificates", "make", "--into", str(tmp_path), *words)
        assert done.returncode == 2, words
    assert tidelog("certificates", "list", str(tmp_path / "absent")).returncode == 1
