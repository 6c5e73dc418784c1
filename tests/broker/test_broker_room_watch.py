"""When a broker says that its disk lacks room, and when it takes that back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.heartbeat_report import PATIENCE_S, RoomWatch
from storage.disk.directory_health import DirectoryHealth, FreeSpace

LOOK_S = 0.5
STATES = st.sampled_from(FreeSpace)
MANY = round(2 * PATIENCE_S / LOOK_S)


@given(st.lists(st.tuples(STATES, STATES, st.integers(1, MANY)), max_size=8))
def test_it_lacks_room_after_a_while_of_refusals_and_until_a_while_of_plenty(
    phases: list[tuple[FreeSpace, FreeSpace, int]],
) -> None:
    """In each phase the state goes to and fro between two looks, and is the second one at the look."""
    health, now = DirectoryHealth(), 0.0
    watch = RoomWatch(health, lambda: now)
    refused: list[float] = []
    before = False
    for between, at_look, looks in phases:
        for _ in range(looks):
            now += LOOK_S
            health.update_free_space(between)
            health.update_free_space(at_look)
            if FreeSpace.REFUSED in (between, at_look):
                refused.append(now)
            lacking = watch.look()
            recent = [when for when in refused if when > now - PATIENCE_S]
            if lacking and not before:
                assert recent[-1:] == [now]
                assert any(when <= now - PATIENCE_S for when in refused)
            if before and not lacking:
                assert not recent
                assert at_look is FreeSpace.PLENTY
            if len(recent) >= PATIENCE_S / LOOK_S and now - PATIENCE_S in refused:
                assert lacking, "refused at every look for so long"
            if not recent and at_look is FreeSpace.PLENTY:
                assert not lacking
            before = lacking


def test_a_full_disk_that_is_made_room_on_in_time_changes_nothing() -> None:
    health, now = DirectoryHealth(), 0.0
    watch = RoomWatch(health, lambda: now)
    for _ in range(MANY):
        health.update_free_space(FreeSpace.REFUSED)
        assert not watch.look()
        now += PATIENCE_S - LOOK_S
        health.update_free_space(FreeSpace.THROTTLED)
        assert not watch.look()
        now += PATIENCE_S
        assert not watch.look()
