"""Who waits for the roles of a metadata offset, and for how long."""

from __future__ import annotations

import asyncio

from broker.partitions.role_changes import Key, RoleChanges
from common.pacing import Pacer, Work
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage


class SlowRoles:
    """Each role costs a whole slice."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.taken: list[Key] = []

    def take_role(self, key: Key) -> int:
        self.taken.append(key)
        return 10_000

    def configure(self, delta: MetadataDelta) -> Work[None]:
        yield 0

    def go_offline(self) -> None:
        raise AssertionError


async def test_it_ends_when_the_roles_are_taken_and_not_before() -> None:
    taker = SlowRoles()
    roles = RoleChanges(0, Pacer(), taker)
    taker.image = MetadataImage(offset=7)
    roles.add_keys((b"topic", number) for number in range(50))
    await roles.wait_for(7, 60)
    assert len(taker.taken) == 50
    assert roles.applied_offset == 7
    await roles.wait_for(9, 60)  # nothing is under way: it does not wait for what may never come


async def test_it_ends_in_time_when_roles_take_longer() -> None:
    taker = SlowRoles()
    roles = RoleChanges(0, Pacer(), taker)
    taker.image = MetadataImage(offset=7)
    roles.add_keys((b"topic", number) for number in range(100_000))
    await roles.wait_for(7, 0.01)
    assert roles.applied_offset < 7
    roles.stop()
    await asyncio.sleep(0)
