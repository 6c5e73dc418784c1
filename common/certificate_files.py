"""Certificate and key files of operators: read as text, watched for changes, loaded into OpenSSL.

They lie anywhere on the machine, outside the node's `Disk`, and the simulated world has none.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_BYTES_MAX = 4 << 20
_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)

FileState = tuple[tuple[int, int, int], ...]


def read_pem(path: str) -> str:
    """The text of a PEM file. Raises OSError, and ValueError for a file without PEM text."""
    data = Path(path).read_bytes()[: FILE_BYTES_MAX + 1]
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"more than {FILE_BYTES_MAX} bytes")
    text = data.decode("ascii", "replace")
    if "-----BEGIN " not in text:
        raise ValueError("no PEM text in it")
    return text


def private_key_in(text: str) -> str | None:
    """The first private key anywhere in a PEM text."""
    found = _KEY.search(text)
    return None if found is None else found[0]


def state_of(paths: Iterable[str]) -> FileState:
    """A value that changes when a file is replaced, written or removed."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


@contextmanager
def in_memory(text: str) -> Iterator[str]:
    """The path of an in-memory file with `text`, because OpenSSL reads some inputs only from files."""
    handle = os.memfd_create("text", os.MFD_CLOEXEC)
    try:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(handle, data) :]
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def load_chain(context: ssl.SSLContext, certificates: str, key: str, password: str) -> None:
    """Load a chain and its key into `context`. Raises ssl.SSLError when certificate, key or password does not fit."""
    with in_memory(f"{key}\n{certificates}\n") as path:
        context.load_cert_chain(path, password=password)
