"""File systems in files, mounted through loop devices, that can be frozen like a silent disk. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

SIZE = "512M"
TOOLS = ("mkfs.ext4", "mount", "umount", "fsfreeze", "truncate")


class LoopDisk:
    """An ext4 file system in the file `image`, mounted over `directory`, whose files it takes over, for the block."""

    def __init__(self, directory: Path, image: Path) -> None:
        self.directory = directory
        self._image = image
        self._is_frozen = False

    def __enter__(self) -> LoopDisk:
        before = self.directory.with_name(self.directory.name + ".before")
        self.directory.rename(before)
        self.directory.mkdir(mode=0o700)
        _run("truncate", "-s", SIZE, str(self._image))
        _run("mkfs.ext4", "-q", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.directory))
        shutil.copytree(before, self.directory, dirs_exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw()
        _run("umount", str(self.directory))
        self._image.unlink()

    def freeze(self) -> None:
        """Writes and flushes wait from now on, reads of what is in memory do not."""
        _run("fsfreeze", "--freeze", str(self.directory))
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            _run("fsfreeze", "--unfreeze", str(self.directory))
            self._is_frozen = False


def lacking() -> str:
    """Why loop disks cannot be used here; "" if they can."""
    if os.geteuid() != 0:
        return "it freezes a file system on a loop device, so only root can run it"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"it needs {', '.join(missing)}"
    return "" if Path("/dev/loop-control").exists() else "it needs loop devices (/dev/loop-control)"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)
