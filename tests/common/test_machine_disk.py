"""Files of the real machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk, MachineFile
from tests.common.call_count import counted_calls

MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no file system in memory is mounted")
def test_files_of_a_file_system_in_memory_are_read_as_any_other() -> None:
    """Some kernels refuse to read them without waiting; each open file learns that by its first read."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="tidelog-") as directory:
        file = MachineDisk(Path(directory)).open("file", create=True)
        assert isinstance(file, MachineFile)
        file.pwrite(b"abcdef", 0)
        assert file.pread_now(3, 2) == b"cde"
        with counted_calls() as learned:
            assert file.pread_now(3, 2) == b"cde"
        with counted_calls() as plain:
            assert file.pread(3, 2) == b"cde"
        assert learned.calls == plain.calls or _reads_now(file.fd)
        assert file.in_memory(6, 0) == 6
        file.close()


def _reads_now(fd: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError:
        return False
