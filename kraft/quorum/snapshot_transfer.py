"""Transfers of snapshots between voters, in parts. Replaces PySyncObj's `Serializer`. No I/O."""

# The names of PySyncObj's interface:
# ruff: noqa: N802

from __future__ import annotations

from typing import NamedTuple

from kraft.quorum.snapshot_file import DamagedSnapshot, Snapshot, decode_snapshot


class Part(NamedTuple):
    position: int
    total: int
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.position + len(self.data) == self.total


class Arrived(NamedTuple):
    snapshot: Snapshot
    encoded: bytes


class SnapshotTransfer:
    """The newest snapshot of this node, the progress of its transfers, and the snapshot that is being received.

    Parts in either direction belong to one term: then they come from one leader, in order, without a gap.
    """

    def __init__(self, part_bytes: int, snapshot_bytes_max: int) -> None:
        self._part_bytes = part_bytes
        self._snapshot_bytes_max = snapshot_bytes_max
        self._encoded = b""
        self.end: tuple[int, int] | None = None  # index and term of the last entry in the offered snapshot
        self._sent: dict[int, tuple[int, int]] = {}  # node id -> term, position
        self._arriving: tuple[int, int, int, int] | None = None  # term, end index, end term, total
        self._buffer = bytearray()
        self._arrived: Arrived | None = None

    def offer(self, encoded: bytes, end: tuple[int, int]) -> None:
        """From now on followers get this snapshot; transfers in progress start over."""
        self._encoded, self.end = encoded, end
        self._sent.clear()

    def next_part(self, node_id: int, term: int) -> Part:
        sent_term, position = self._sent.get(node_id, (term, 0))
        if sent_term != term:
            position = 0
        data = self._encoded[position : position + self._part_bytes]
        part = Part(position, len(self._encoded), data)
        if part.is_last:
            self._sent.pop(node_id, None)
        else:
            self._sent[node_id] = (term, position + len(data))
        return part

    def is_under_way(self, node_id: int) -> bool:
        return node_id in self._sent

    def cancel(self, node_id: int) -> None:
        self._sent.pop(node_id, None)

    def take(self) -> Arrived | None:
        """The snapshot whose last part has just arrived."""
        arrived, self._arrived = self._arrived, None
        return arrived

    # -- what PySyncObj calls

    def setTransmissionData(self, serialized: tuple[int, int, int, int, int, bytes]) -> bool:
        """Take a part, and with the last one the whole snapshot. False: the library has nothing to install."""
        term, end_index, end_term, position, total, data = serialized
        identity = (term, end_index, end_term, total)
        if total > self._snapshot_bytes_max:
            return False
        if position == 0:
            self._arriving = identity
            self._buffer.clear()
        if self._arriving != identity or position != len(self._buffer):
            return False
        self._buffer += data
        if len(self._buffer) < total:
            return False
        encoded = bytes(self._buffer)
        self._arriving = None
        self._buffer = bytearray()
        try:
            snapshot = decode_snapshot(encoded, "snapshot of the leader")
        except DamagedSnapshot:
            return False  # the leader will find that this node still lacks entries, and start over
        if snapshot.end != (end_index, end_term):
            return False
        self._arrived = Arrived(snapshot, encoded)
        return False
