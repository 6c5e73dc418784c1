"""Whether a node's disk takes a write, before the node does anything that others rely on.

A node that ended because its disk was stuck starts again. It must not register before the disk is back: it would take
leaderships and hang with them. So each start writes and flushes a small file first, in a thread that may hang.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from common.disk_errors import NO_FILES, NO_ROOM

logger = logging.getLogger(__name__)

PROBE_FILE = ".probe"
PATIENCE_S = 120.0  # then the process ends, and whatever supervises it starts another
COMPLAINT_S = 10.0


class DiskSilent(Exception):
    """The disk of the log directory does not take a write; the text names the directory."""


def probe_disk(directory: Path, fsync: Callable[[int], None] = os.fsync) -> None:
    """Write, flush and remove a small file. OSError; a lack of room or of descriptors passes, which nodes live with."""
    path = directory / PROBE_FILE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"probe")
            fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in NO_ROOM and error.errno not in NO_FILES:
            raise
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def wait_for_disk(
    directory: Path,
    waiting: Callable[[str], None],
    probe: Callable[[Path], None] = probe_disk,
    patience_s: float = PATIENCE_S,
    complaint_s: float = COMPLAINT_S,
) -> None:
    """Return when a probe has succeeded. `waiting` gets a message every `complaint_s` until then.

    Raises DiskSilent if the probe fails, or has not ended after `patience_s`; its thread may remain.
    """
    ended = threading.Event()
    failures: list[OSError] = []

    def work() -> None:
        try:
            probe(directory)
        except OSError as error:
            failures.append(error)
        ended.set()

    threading.Thread(target=work, name="disk-probe", daemon=True).start()
    waited_s = 0.0
    while not ended.wait(min(complaint_s, patience_s - waited_s)):
        waited_s += complaint_s
        text = f"log.dirs: {directory}: the disk has not taken a write for {waited_s:g} s"
        if waited_s >= patience_s:
            raise DiskSilent(text)
        waiting(f"{text}; this node starts when it does")
    if failures:
        raise DiskSilent(f"log.dirs: {directory} cannot be written to: {failures[0].strerror}")
    if waited_s:
        logger.warning("the disk takes writes again", extra={"directory": directory, "waited_s": waited_s})
