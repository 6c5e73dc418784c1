"""Where the newest batches of the active segment lie: nearly every fetch is answered from here."""

from array import array

TAIL_BATCHES_MAX = 1_024


class Tail:
    """`starts[i]` is the first offset, less `base`, that the batch at `positions[i]` answers for.

    That is where the batch before it ended, so an offset in a gap (compaction leaves them) finds the batch after it.
    Eight bytes per batch; the older half goes when it is full.
    """

    __slots__ = ("_fresh_next", "age", "base", "fresh_from", "positions", "starts")

    def __init__(self, base: int) -> None:
        self.base = base
        self.starts = array("I")
        self.positions = array("I")
        self.age = -2  # `ColdReads.age` when the newest bytes were appended
        self.fresh_from = self._fresh_next = 0  # what lies from there on was appended in that age or in the one before

    def grow_older(self, age: int, position: int) -> None:
        """What is appended from `position` on is of `age`."""
        self.fresh_from = self._fresh_next if age == self.age + 1 else position
        self._fresh_next = position
        self.age = age

    def is_fresh(self, position: int, age: int) -> bool:
        """Whether the bytes from `position` on were appended a moment ago, in `age` or in the one before."""
        return position >= self.fresh_from and age - self.age <= 1

    def append(self, start_offset: int, position: int) -> None:
        starts = self.starts
        if len(starts) >= TAIL_BATCHES_MAX:
            half = TAIL_BATCHES_MAX // 2
            del starts[:half], self.positions[:half]
        starts.append(start_offset - self.base)
        self.positions.append(position)
