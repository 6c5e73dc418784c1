"""Files of the real machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from tests.common.call_count import counted_calls

MEMORY = Path("/dev/shm")


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no file system in memory is mounted")
def test_files_of_a_file_system_in_memory_are_read_as_any_other() -> None:
    """Linux refuses to read them without waiting; each open file learns that by its first read."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="tidelog-") as directory:
        file = MachineDisk(Path(directory)).open("file", create=True)
        file.pwrite(b"abcdef", 0)
        assert file.pread_now(3, 2) == b"cde"
        with counted_calls() as learned:
            assert file.pread_now(3, 2) == b"cde"
        with counted_calls() as plain:
            assert file.pread(3, 2) == b"cde"
        assert learned.calls == plain.calls
        assert file.in_memory(6, 0) == 6
        file.close()
