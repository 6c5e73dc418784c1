"""Where the newest batches of the active segment lie: nearly every fetch is answered from here."""

from array import array

TAIL_BATCHES_MAX = 1_024


class Tail:
    """`starts[i]` is the first offset, less `base`, that the batch at `positions[i]` answers for.

    That is where the batch before it ended, so an offset in a gap (compaction leaves them) finds the batch after it.
    Eight bytes per batch; the older half goes when it is full.
    """

    __slots__ = ("base", "positions", "starts")

    def __init__(self, base: int) -> None:
        self.base = base
        self.starts = array("I")
        self.positions = array("I")

    def append(self, start_offset: int, position: int) -> None:
        starts = self.starts
        if len(starts) >= TAIL_BATCHES_MAX:
            half = TAIL_BATCHES_MAX // 2
            del starts[:half], self.positions[:half]
        starts.append(start_offset - self.base)
        self.positions.append(position)
