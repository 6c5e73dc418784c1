"""The shared memory of one proxy's workers, with a slot for each.

A slot has one writer, so it needs no lock, and a worker that dies during a change harms no other. It holds the worker's
counters and its connections per key (a tenant, an address). A key is 64 bits of a keyed hash, kept in a set of 16
places. When a set is full, only the key's own worker counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from common.ports import Buffer

COUNTERS_MAX = 64
SETS = 4_096
PLACES = 16
_COUNT = Struct("<Q")
_ENTRY_BYTES = 16  # the key's hash, then the count
_SET_BYTES = PLACES * _ENTRY_BYTES
_HEAD_BYTES = 8 * (COUNTERS_MAX + 1)  # whether the slot is in use, then the counters
SLOT_BYTES = -(-(_HEAD_BYTES + SETS * _SET_BYTES) // 4096) * 4096


class Slot:
    """One worker's part of the memory."""

    __slots__ = ("_key", "_view")

    def __init__(self, view: memoryview, key: bytes) -> None:
        self._view, self._key = view, key

    @property
    def in_use(self) -> bool:
        return self._view[0] != 0

    def take(self) -> None:
        """Clear the slot. The parent calls this before it starts a worker."""
        self._view[:] = bytes(len(self._view))
        self._view[0] = 1

    def release(self) -> None:
        """Free the slot. The parent calls this after the worker's end."""
        self._view[0] = 0

    def write_counters(self, values: Sequence[int]) -> None:
        for number, value in enumerate(values):
            _COUNT.pack_into(self._view, 8 * (number + 1), value)

    def read_counters(self, count: int) -> list[int]:
        return [_COUNT.unpack_from(self._view, 8 * (number + 1))[0] for number in range(count)]

    def write(self, key: str, count: int) -> None:
        digest, first = self._place(key)
        at = self._find(digest, first)
        if at is None:
            at = next((one for one in _places(first) if not _COUNT.unpack_from(self._view, one + 8)[0]), None)
            if at is None or not count:
                return
            self._view[at : at + 8] = digest
        _COUNT.pack_into(self._view, at + 8, count)

    def read(self, key: str) -> int:
        digest, first = self._place(key)
        at = self._find(digest, first)
        return 0 if at is None else int(_COUNT.unpack_from(self._view, at + 8)[0])

    def _place(self, key: str) -> tuple[bytes, int]:
        digest = blake2b(key.encode(), digest_size=8, key=self._key).digest()
        return digest, _HEAD_BYTES + int.from_bytes(digest[:2], "little") % SETS * _SET_BYTES

    def _find(self, digest: bytes, first: int) -> int | None:
        found = bytes(self._view[first : first + _SET_BYTES])
        at = found.find(digest)
        while at > 0 and at % _ENTRY_BYTES:
            at = found.find(digest, at + 1)
        return None if at < 0 else first + at


def _places(first: int) -> range:
    return range(first, first + _SET_BYTES, _ENTRY_BYTES)


class SharedState:
    """All slots in `memory`, which every process of the proxy shares. `key` is the random key of the hash."""

    def __init__(self, memory: Buffer, key: bytes) -> None:
        view = memoryview(memory)
        self.slots = [Slot(view[at : at + SLOT_BYTES], key) for at in range(0, len(view), SLOT_BYTES)]

    @staticmethod
    def bytes_for(slots: int) -> int:
        return slots * SLOT_BYTES

    def take_slot(self) -> int:
        """Take a free slot and return its number. Raises LookupError."""
        for number, slot in enumerate(self.slots):
            if not slot.in_use:
                slot.take()
                return number
        raise LookupError("no slot is free")

    def elsewhere(self, own: int, key: str) -> int:
        """How many connections of `key` the workers of the other slots have."""
        return sum(slot.read(key) for number, slot in enumerate(self.slots) if number != own and slot.in_use)
