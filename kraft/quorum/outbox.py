"""Outgoing messages of a Raft node, separated by whether they may be sent before the journal's next fsync."""

from __future__ import annotations

from collections.abc import Callable

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from kraft.quorum.message_filter import PROMISES, Message, RaftView, outgoing


class Outbox(Transport):  # type: ignore[misc]  # the library is untyped
    """PySyncObj's transport. `at_once`: messages that promise nothing."""

    def __init__(self, view: Callable[[], RaftView]) -> None:
        super().__init__(None, None, [])
        self._view = view
        self.at_once: list[tuple[int, Message]] = []
        self.promises: list[tuple[int, Message]] = []

    def send(self, node: Node, message: Message) -> bool:
        message = outgoing(self._view(), message)
        if message["type"] not in PROMISES:
            self.at_once.append((node.id, message))
        elif self._is_outdated_by(node.id, message):
            self.promises[-1] = (node.id, message)
        else:
            self.promises.append((node.id, message))
        return True

    def _is_outdated_by(self, node_id: int, message: Message) -> bool:
        """Whether the last promise is an acknowledgement, and `message` one to the same node for more."""
        if not self.promises or not message.get("success"):
            return False
        last_id, last = self.promises[-1]
        return last_id == node_id and bool(last.get("success")) and last["next_node_idx"] <= message["next_node_idx"]

    def take_at_once(self) -> list[tuple[int, Message]]:
        taken, self.at_once = self.at_once, []
        return taken

    def take_promises(self) -> list[tuple[int, Message]]:
        """Call it only after an fsync of the journal."""
        taken, self.promises = self.promises, []
        return taken
