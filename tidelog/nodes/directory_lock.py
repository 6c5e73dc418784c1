"""One process per data directory, because two that write to one log destroy it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = ".lock"


class DirectoryInUse(Exception):
    """Another process holds the directory, or it cannot be written to; the text names it."""


@contextmanager
def held_directory(directory: Path) -> Iterator[None]:
    """Lock `directory`, created if missing, until the block or the process ends.

    Only its owner may read it, because metadata and records in it are not encrypted.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DirectoryInUse(f"log.dirs: {directory} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise DirectoryInUse(f"log.dirs: {directory} is used by another process already") from None
    try:
        yield
    finally:
        os.close(handle)
