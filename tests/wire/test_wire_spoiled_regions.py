"""Regions of files that somebody alters before they have left: told, named, and not sent."""

from __future__ import annotations

import pytest

from tests.wire.fakes import Bench, FakeFile, FakeRegion, turns


@pytest.mark.parametrize("length", [1000, 100_000])
@pytest.mark.parametrize("is_altered", [True, False])
async def test_a_region_that_is_altered_or_ends_early_is_named_and_not_sent(length: int, is_altered: bool) -> None:
    class Told(FakeRegion):
        told = 0

        def is_intact(self) -> bool:
            return not is_altered

        def cut_short(self) -> str:
            self.told += 1
            return "flights/1.segment"

    bench = Bench()
    connection, peer = bench.connect()
    region = Told(FakeFile(bytes(1 << 20 if is_altered else 10)), 0, length)
    connection.send([region])
    await turns()
    assert connection.is_closed
    assert (region.told, region.released) == (1, 1)
    (reason,) = bench.violations
    assert "flights/1.segment" in reason
    assert len(peer.inbox) <= (0 if is_altered else 10)
    bench.watch.close()
