"""What is many and lives long is left out of the collector's rounds; what was garbage before is not kept by that."""

from __future__ import annotations

import gc

from broker.partitions.long_lived import LongLived


def test_each_so_many_are_left_out_and_young_garbage_goes_first() -> None:
    gc.collect()
    before = gc.get_freeze_count()
    long_lived = LongLived(3)
    try:
        long_lived.made()
        long_lived.made()
        assert gc.get_freeze_count() == before
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        kept = [[number] for number in range(1_000)]
        long_lived.made()
        assert gc.get_freeze_count() >= before + len(kept)
        assert gc.collect() == 0, "the cycle went before"
    finally:
        gc.unfreeze()
        if before:  # what the session had left out
            gc.freeze()
