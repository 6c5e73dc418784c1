"""What a replica's disk holds of one partition, read past the product's own code and without touching its ports."""

from __future__ import annotations

from typing import NamedTuple

from records.batch import HEADER_BYTES, MAGIC, read_header
from tests.sim.disk import Device, Directory, FileNode


class Batch(NamedTuple):
    """One record batch; the CRC stands for its content, which no broker may change."""

    base_offset: int
    next_offset: int
    crc: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool


class ReplicaFiles:
    """The batches of one replica, scanned on from where the last look ended. `batches` is sorted by offset."""

    def __init__(self, device: Device, directory: str) -> None:
        self._device, self._directory = device, directory
        self.batches: list[Batch] = []
        self._segment = ""  # in which the last batch lies
        self._last_at = 0
        self._end_at = 0
        self.verified = 0  # leading batches that are known to be the committed ones

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def look(self) -> ReplicaFiles:
        """Take in what was written or cut since the last look."""
        entry = self._device.find(self._directory)
        names = entry.names if isinstance(entry, Directory) else {}
        if self.batches and not self._continues(names.get(self._segment)):
            self.batches.clear()
            self.verified = 0
        if not self.batches:
            self._segment, self._end_at = "", 0
        segments = sorted(name for name in names if name.endswith(".log") and name >= self._segment)
        for name in segments:
            node = names[name]
            if isinstance(node, FileNode):
                self._scan(name, node, self._end_at if name == self._segment else 0)
        return self

    def _continues(self, node: object) -> bool:
        if not isinstance(node, FileNode) or len(node.cached) < self._end_at:
            return False
        return self._batch(node, self._last_at) == self.batches[-1]

    def _scan(self, name: str, node: FileNode, at: int) -> None:
        content, batches = node.cached, self.batches
        while len(content) - at >= HEADER_BYTES:
            size = int.from_bytes(content[at + 8 : at + 12], "big") + 12
            if content[at + 16] != MAGIC or size < HEADER_BYTES or at + size > len(content):
                return
            batch = self._batch(node, at)
            if batches and batch.base_offset < batches[-1].next_offset:
                return
            batches.append(batch)
            self._segment, self._last_at = name, at
            at += size
            self._end_at = at

    @staticmethod
    def _batch(node: FileNode, at: int) -> Batch:
        header = read_header(node.cached, at)
        return Batch(
            header.base_offset,
            header.next_offset,
            header.crc,
            header.leader_epoch,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.is_control,
        )
