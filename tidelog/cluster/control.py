"""Sends a command's request to the supervisor of a running cluster: one JSON line each way over `DIR/supervisor.sock`.

The socket is addressed through a descriptor of the directory, because the path of a Unix socket is limited to 107
bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET_FILE = "supervisor.sock"
LINE_BYTES_MAX = 1 << 20


class ClusterDown(Exception):
    """No supervisor answers for this directory."""


@contextlib.contextmanager
def socket_path(root: Path) -> Iterator[str]:
    """A short path of the control socket in `root`, valid within the block."""
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET_FILE}"
    finally:
        os.close(directory)


def ask(root: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The supervisor's answer. Raises ClusterDown if none runs, TimeoutError if it takes too long."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            with socket_path(root) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise ClusterDown(f"no cluster is running in {root}") from error
        connection.sendall(json.dumps(request).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            received = connection.recv(65_536)
            if not received:
                raise ClusterDown(f"the supervisor in {root} ended while it was asked")
            line += received
    answer: dict[str, Any] = json.loads(line)
    return answer
