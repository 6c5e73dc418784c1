"""Positions of the newest batches in the active segment, from which nearly every fetch is answered."""

from array import array

TAIL_BATCHES_MAX = 1_024


class Tail:
    """`starts[i]`: the first offset, minus `base`, for which the batch at `positions[i]` is the answer.

    That is where the batch before it ended, so an offset in a gap (left by compaction) finds the batch after it. Eight
    bytes per batch; when it is full, the older half is dropped.
    """

    __slots__ = ("_fresh_next", "age", "base", "fresh_from", "positions", "starts")

    def __init__(self, base: int) -> None:
        self.base = base
        self.starts = array("I")
        self.positions = array("I")
        self.age = -2  # `ColdReads.age` when the newest bytes were appended
        self.fresh_from = self._fresh_next = 0  # bytes from there on were appended in that age or the one before

    def grow_older(self, age: int, position: int) -> None:
        """Bytes appended from `position` on belong to `age`."""
        self.fresh_from = self._fresh_next if age == self.age + 1 else position
        self._fresh_next = position
        self.age = age

    def is_fresh(self, position: int, age: int) -> bool:
        """Whether the bytes from `position` on were appended in `age` or the one before."""
        return position >= self.fresh_from and age - self.age <= 1

    def append(self, start_offset: int, position: int) -> None:
        starts = self.starts
        if len(starts) >= TAIL_BATCHES_MAX:
            half = TAIL_BATCHES_MAX // 2
            del starts[:half], self.positions[:half]
        starts.append(start_offset - self.base)
        self.positions.append(position)
