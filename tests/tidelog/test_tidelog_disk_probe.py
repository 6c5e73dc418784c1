"""A node starts only when its disk takes a write."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tidelog.nodes.disk_probe import DiskSilent, probe_disk, wait_for_disk


def test_a_working_disk_is_left_as_it_was(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    wait_for_disk(directory, pytest.fail)
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o077 == 0


def test_the_node_goes_on_by_itself_when_the_disk_is_back(tmp_path: Path) -> None:
    back = threading.Event()
    messages: list[str] = []

    def waiting(message: str) -> None:
        messages.append(message)
        if len(messages) == 3:
            back.set()

    wait_for_disk(tmp_path, waiting, lambda _: assert_true(back.wait(30)), patience_s=30, complaint_s=0.01)
    assert (
        messages[0] == f"log.dirs: {tmp_path}: the disk has not taken a write for 0.01 s; this node starts when it does"
    )


def assert_true(value: bool) -> None:
    assert value


def test_the_wait_is_bounded(tmp_path: Path) -> None:
    end = threading.Event()
    messages: list[str] = []
    with pytest.raises(DiskSilent, match=r"has not taken a write for 0\.04 s"):
        wait_for_disk(tmp_path, messages.append, lambda _: assert_true(end.wait(30)), patience_s=0.04, complaint_s=0.02)
    end.set()
    assert len(messages) == 1


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(DiskSilent, match=r"log\.dirs: .* cannot be written to: Input/output error"):
        wait_for_disk(tmp_path, pytest.fail, refuse)


def test_a_full_disk_lets_a_node_start(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    probe_disk(tmp_path, full)
    assert list(tmp_path.iterdir()) == []
