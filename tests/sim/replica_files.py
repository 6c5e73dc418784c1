"""What a replica's disk holds of one partition, read past the product's own code and without touching its ports."""

from __future__ import annotations

import bisect
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
    is_transactional: bool = False


class ReplicaFiles:
    """The batches of one replica, scanned on from where the last look ended. `batches` is sorted by offset.

    `first_offset` is where the first segment begins: what lies below is not on this disk.
    """

    def __init__(self, device: Device, directory: str) -> None:
        self._device, self._directory = device, directory
        self.batches: list[Batch] = []
        self.bases: list[int] = []  # of the batches
        self.first_offset = 0
        self.verified_end = 0  # up to here the batches were found to be what is committed
        self._places: list[tuple[str, int]] = []  # of the batches: segment and position
        self._first = ""  # segment
        self._end_at = 0
        self._seen: tuple[object, int, int] = (None, 0, 0)  # the directory, its changes, losses of power
        self._scanned: list[tuple[FileNode, int]] = []  # segments that may grow, and their changes

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.first_offset

    def look(self) -> ReplicaFiles:
        """Take in what was written, cut or removed since the last look."""
        entry = self._device.find(self._directory)
        names, changes = (entry.names, entry.changes) if isinstance(entry, Directory) else ({}, 0)
        seen = (entry, changes, self._device.power_losses)
        if seen == self._seen and all(node.changes == known for node, known in self._scanned):
            return self
        self._seen = seen
        segments = sorted(name for name in names if name.endswith(".log"))
        first = segments[0] if segments else ""
        if self.batches and (first < self._first or not self._continues(names.get(self._places[-1][0]))):
            self._forget(len(self.batches))
            self.verified_end = 0
        if first != self._first:
            self._first = first
            self.first_offset = int(first.partition(".")[0]) if first else 0
            self._forget(bisect.bisect_left(self._places, (first, 0)))
        if not self.batches:
            self._end_at = 0
        last = self._places[-1][0] if self.batches else ""
        self._scanned.clear()
        for name in segments:
            node = names[name]
            if name >= last and isinstance(node, FileNode):
                self._scanned.append((node, node.changes))
                self._scan(name, node, self._end_at if name == last else 0)
        return self

    def content(self, number: int) -> bytes:
        """The bytes of `batches[number]`."""
        name, at = self._places[number]
        node = self._device.find(f"{self._directory}/{name}")
        assert isinstance(node, FileNode)
        size = int.from_bytes(node.cached[at + 8 : at + 12], "big") + 12
        return bytes(memoryview(node.cached)[at : at + size])

    def _forget(self, count: int) -> None:
        del self.batches[:count], self.bases[:count], self._places[:count]

    def _continues(self, node: object) -> bool:
        if not isinstance(node, FileNode) or len(node.cached) < self._end_at:
            return False
        return batch_at(node.cached, self._places[-1][1]) == self.batches[-1]

    def _scan(self, name: str, node: FileNode, at: int) -> None:
        content, batches = node.cached, self.batches
        while len(content) - at >= HEADER_BYTES:
            size = int.from_bytes(content[at + 8 : at + 12], "big") + 12
            if content[at + 16] != MAGIC or size < HEADER_BYTES or at + size > len(content):
                return
            batch = batch_at(content, at)
            if batches and batch.base_offset < batches[-1].next_offset:
                return
            batches.append(batch)
            self.bases.append(batch.base_offset)
            self._places.append((name, at))
            at += size
            self._end_at = at


def batch_at(content: bytes | bytearray, at: int) -> Batch:
    header = read_header(content, at)
    return Batch(
        header.base_offset,
        header.next_offset,
        header.crc,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_control,
        header.is_transactional,
    )
