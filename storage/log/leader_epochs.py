"""Which leader epoch began at which offset of one partition's log, and its checkpoint file.

Source: KIP-101, KIP-279; the file `leader-epoch-checkpoint` is text: version 0, the number of entries, then one
line "epoch start-offset" per entry.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

CHECKPOINT_VERSION = 0
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """Epoch and its end offset; both are -1 if the epoch is unknown."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


class LeaderEpochCache:
    """Leader epochs with their start offsets, both strictly increasing, and whether the checkpoint file is up to date.

    Epochs below the log start may stay in the file, because reading drops them.
    """

    __slots__ = ("_epochs", "_is_saved", "_starts", "latest_epoch")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._is_saved = False
        self.latest_epoch = UNDEFINED_EPOCH  # -1 if no batch has an epoch; read for each batch

    def _changed(self) -> None:
        self._is_saved = False
        self.latest_epoch = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that `epoch` begins at `start_offset`. Returns whether anything changed.

        An epoch keeps its first start offset. Entries that contradict the new one (an epoch not lower, a start not
        lower) are removed, because the new entry comes from the log itself or from its leader.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {start_offset}")
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and starts[-1] <= start_offset:
            return False
        keep = min(bisect_left(epochs, epoch), bisect_left(starts, start_offset))
        del epochs[keep:], starts[keep:]
        epochs.append(epoch)
        starts.append(start_offset)
        self._changed()
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The largest known epoch up to `epoch`, and its end: the next epoch's start, or the log's end.

        An epoch above all known ones is UNDEFINED; one below all returns itself and the first known start.
        """
        epochs = self._epochs
        if epoch < 0 or not epochs:
            return UNDEFINED
        if epoch == epochs[-1]:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(epochs, epoch)
        if above == len(epochs):
            return UNDEFINED
        return EpochEnd(epochs[above - 1] if above else epoch, self._starts[above])

    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was or would be written; -1 before the first entry."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else UNDEFINED_EPOCH

    def chain(self, base_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The epochs of [base_offset, end_offset): (epoch, start offset), the first at or before the base.

        If the log start is inside the range, the first remaining epoch is reported to begin at the base.
        """
        first = max(bisect_right(self._starts, base_offset) - 1, 0)
        last = bisect_left(self._starts, end_offset)
        entries = list(zip(self._epochs[first:last], self._starts[first:last], strict=True))
        if entries and entries[0][1] > base_offset:
            entries[0] = (entries[0][0], base_offset)
        return entries

    def restore(self, older: Iterable[tuple[int, int]]) -> bool:
        """Add (epoch, start offset) entries from before the first one here. Returns whether there were new ones."""
        before: list[tuple[int, int]] = []
        for epoch, start_offset in older:
            known = not self._epochs or (epoch <= self._epochs[0] and start_offset < self._starts[0])
            if known and (not before or (epoch > before[-1][0] and start_offset > before[-1][1])):
                before.append((epoch, start_offset))
        if not before:
            return False
        if self._epochs and before[-1][0] == self._epochs[0]:
            self._starts[0] = before.pop()[1]
        self._epochs[:0] = [epoch for epoch, _ in before]
        self._starts[:0] = [start_offset for _, start_offset in before]
        self._changed()
        return True

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or after `end_offset`, the log's new end."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`; the epoch that contains it now begins there."""
        at = bisect_right(self._starts, start_offset)
        if at == 0 or (at == 1 and self._starts[0] == start_offset):
            return
        del self._epochs[: at - 1], self._starts[: at - 1]
        self._starts[0] = start_offset

    def clear(self) -> None:
        self.truncate_from_end(0)

    def take_unsaved(self) -> bytes | None:
        """The content to write to the checkpoint file, None if the file is up to date."""
        if self._is_saved:
            return None
        self.saved()
        return self.encode()

    def saved(self) -> None:
        """The checkpoint file is up to date."""
        self._is_saved = True

    def not_saved(self) -> None:
        """The file was not written, or may not be on the device."""
        self._is_saved = False

    def encode(self) -> bytes:
        lines = [str(CHECKPOINT_VERSION), str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> "LeaderEpochCache":
        """The inverse of `encode`; ValueError on anything else."""
        lines = data.decode("ascii").splitlines()
        if len(lines) < 2 or lines[0].strip() != str(CHECKPOINT_VERSION) or int(lines[1]) != len(lines) - 2:
            raise ValueError("not a leader epoch checkpoint of version 0")
        cache = cls()
        for line in lines[2:]:
            epoch, start = line.split()
            cache.assign(int(epoch), int(start))
        cache.saved()
        return cache
