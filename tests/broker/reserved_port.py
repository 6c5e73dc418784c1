"""Ports of laboratories."""

from __future__ import annotations

import socket

LOCALHOST = "127.0.0.1"


class ReservedPort:
    """A port that no other process gets by chance while this is open; its owner may listen on it again and again."""

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as listeners do, so that they may share it
        self._holder.bind((LOCALHOST, 0))
        self.number: int = self._holder.getsockname()[1]

    def close(self) -> None:
        self._holder.close()
