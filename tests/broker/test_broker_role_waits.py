"""Who waits for the roles of a metadata offset, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from broker.partitions.role_changes import Key, RoleChanges
from broker.requests.forwarding import Forwarder, ForwardLimits
from common.pacing import Pacer, Work
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from tests.virtual_time import LoopClock
from wire.codec import encode_response
from wire.messages import CreateTopicsRequest, CreateTopicsResponse, EnvelopeResponse

VERSION = 7


class Directories:
    """None is needed."""

    async def make(self, wanted: Mapping[tuple[str, int], bytes]) -> None: ...

    def discard(self) -> None: ...


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
    roles = RoleChanges(0, Pacer(), taker, Directories())
    taker.image = MetadataImage(offset=7)
    roles.add_keys((b"topic", number) for number in range(50))
    await roles.wait_for(7, 60)
    assert len(taker.taken) == 50
    assert roles.applied_offset == 7
    await roles.wait_for(9, 60)  # nothing is under way: it does not wait for what may never come


async def test_it_ends_in_time_when_roles_take_longer() -> None:
    taker = SlowRoles()
    roles = RoleChanges(0, Pacer(), taker, Directories())
    taker.image = MetadataImage(offset=7)
    roles.add_keys((b"topic", number) for number in range(100_000))
    await roles.wait_for(7, 0.01)
    assert roles.applied_offset < 7
    roles.stop()
    await asyncio.sleep(0)


class Controllers:
    """Answer at once, with what they committed at offset 7."""

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        answer = encode_response(CreateTopicsRequest.API_KEY, VERSION, 1, CreateTopicsResponse(topics=[]))
        return EnvelopeResponse(error_code=0, response_data=answer[4:], committed_offset=7)


class Following:
    image: MetadataImage = EMPTY_IMAGE

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        return True


async def test_a_client_is_answered_when_the_roles_of_what_it_made_are_taken() -> None:
    taker = SlowRoles()
    roles = RoleChanges(0, Pacer(), taker, Directories())
    taker.image = MetadataImage(offset=7)
    roles.add_keys((b"topic", number) for number in range(50))
    forwarder = Forwarder(Controllers(), Following(), LoopClock(), ForwardLimits(), None, roles)
    request = CreateTopicsRequest(topics=[], timeout_ms=1_000, validate_only=False)
    assert (await forwarder.forward(None, request)).topics == []
    assert len(taker.taken) == 50
