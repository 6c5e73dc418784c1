"""Bytes of some connections, counted where they pass the sockets."""

from __future__ import annotations


class Traffic:
    """Bytes that were received and sent; both only grow. Shared by all connections that are counted together."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
