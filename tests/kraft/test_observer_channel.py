"""The channel to the active controller, and a broker's lifecycle on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from common.errors import ErrorCode, OutcomeUnknown
from common.identifiers import ZERO_UUID
from common.ports import Address
from kraft.links import Link
from kraft.observers.broker_lifecycle import BrokerLifecycle, LifecycleConfig, Registration, RegistrationRefused
from kraft.observers.controller_channel import ChannelConfig, ControllerChannel, ControllerUnavailable
from tests.kraft.fake_quorum import clock_ports
from wire.client import CallTimeout, ConnectionLost
from wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
    raw_uuid,
)

pytestmark = pytest.mark.virtual_time

Answer = Callable[[Any], Any]
CONFIG = ChannelConfig(backoff_min_s=0.001, backoff_max_s=0.01, attempt_timeout_s=0.2)


def ok(_request: Any) -> Any:
    return BrokerHeartbeatResponse(error_code=0, is_caught_up=True, is_fenced=False)


def not_controller(_request: Any) -> Any:
    return BrokerHeartbeatResponse(error_code=int(ErrorCode.NOT_CONTROLLER))


def refuse(_request: Any) -> Any:
    raise ConnectionRefusedError


def vanish(_request: Any) -> Any:
    raise ConnectionLost("gone")


def silent(_request: Any) -> Any:
    raise CallTimeout("silent")


class ScriptedLink:
    def __init__(self, links: ScriptedLinks, controller: int) -> None:
        self._links = links
        self._controller = controller
        self.is_closed = False

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        await asyncio.sleep(0)
        self._links.calls.append(self._controller)
        return self._links.answers[self._controller](request)

    def close(self) -> None:
        self.is_closed = True


class ScriptedLinks:
    """Controller N is at port N and answers as its function says; `refuse` refuses the connection."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = {int(name.removeprefix("c")): answer for name, answer in answers.items()}
        self.calls: list[int] = []
        self.connects = 0

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        self.connects += 1
        await asyncio.sleep(0)
        if self.answers[address[1]] is refuse:
            raise ConnectionLost("refused")
        return ScriptedLink(self, address[1])

    def channel(self, hint: int = -1, config: ChannelConfig = CONFIG) -> ControllerChannel:
        addresses = {node_id: ("local", node_id) for node_id in self.answers}
        return ControllerChannel(self, addresses, random.Random(1), config, lambda: hint)


REQUEST = BrokerHeartbeatRequest(broker_id=1, broker_epoch=5, current_metadata_offset=7)


async def test_it_looks_until_it_finds_the_active_controller_and_stays_there() -> None:
    links = ScriptedLinks(c1=not_controller, c2=refuse, c3=ok)
    channel = links.channel()
    for _ in range(3):
        assert (await channel.call(REQUEST, 1, timeout_s=2)).error_code == 0
    assert links.calls == [1, 3, 3, 3]


async def test_the_hint_comes_first_and_a_wrong_one_does_not_trap() -> None:
    links = ScriptedLinks(c1=not_controller, c2=not_controller, c3=ok)
    assert (await links.channel(hint=3).call(REQUEST, 1, timeout_s=2)).error_code == 0
    assert links.calls == [3]
    links.calls.clear()
    assert (await links.channel(hint=2).call(REQUEST, 1, timeout_s=2)).error_code == 0
    assert links.calls[0] == 2
    assert links.calls[-1] == 3


async def test_calls_share_one_connection() -> None:
    links = ScriptedLinks(c1=ok)
    channel = links.channel()
    await asyncio.gather(*(channel.call(REQUEST, 1, timeout_s=2) for _ in range(10)))
    assert links.connects == 1


async def test_nothing_was_sent_when_nobody_is_there() -> None:
    links = ScriptedLinks(c1=refuse, c2=refuse)
    with pytest.raises(ControllerUnavailable):
        await links.channel().call(REQUEST, 1, timeout_s=0.05, repeatable=False)
    assert links.calls == []
    assert links.connects > 2


@pytest.mark.parametrize("failure", [vanish, silent])
async def test_a_request_whose_fate_is_unknown_is_sent_again_only_if_it_may_be(failure: Answer) -> None:
    links = ScriptedLinks(c1=failure)
    with pytest.raises(OutcomeUnknown):
        await links.channel().call(REQUEST, 1, timeout_s=0.1, repeatable=False)
    assert len(links.calls) == 1
    with pytest.raises(OutcomeUnknown):
        await links.channel().call(REQUEST, 1, timeout_s=0.1)
    assert len(links.calls) > 2


async def test_the_calls_of_a_channel_are_bounded() -> None:
    links = ScriptedLinks(c1=refuse)
    channel = links.channel(config=ChannelConfig(backoff_min_s=0.001, calls_max=2))
    waiting = [asyncio.create_task(channel.call(REQUEST, 1, timeout_s=0.1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ControllerUnavailable, match="many"):
        await channel.call(REQUEST, 1, timeout_s=0.1)
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_closed_channel_calls_nobody() -> None:
    links = ScriptedLinks(c1=ok)
    channel = links.channel()
    await channel.call(REQUEST, 1, timeout_s=1)
    await channel.close()
    with pytest.raises(ControllerUnavailable):
        await channel.call(REQUEST, 1, timeout_s=1)


# -- lifecycle


class FakeController:
    """Answers registrations and heartbeats; records the latter."""

    def __init__(self) -> None:
        self.registrations: list[Any] = []
        self.heartbeats: list[Any] = []
        self.registration_codes: list[int] = []
        self.heartbeat_code = 0
        self.may_stop = False
        self.keeps = False  # a broker whose storage is stuck

    def __call__(self, request: Any) -> Any:
        if request.name == "BrokerRegistrationRequest":
            self.registrations.append(request)
            code = self.registration_codes.pop(0) if self.registration_codes else 0
            return BrokerRegistrationResponse(error_code=code, broker_epoch=-1 if code else 40)
        self.heartbeats.append(request)
        return BrokerHeartbeatResponse(
            error_code=self.heartbeat_code,
            is_caught_up=request.current_metadata_offset >= 40,
            is_fenced=(request.want_fence and not (self.keeps and request.storage_stuck))
            or request.current_metadata_offset < 40,
            should_shut_down=self.may_stop and request.want_shut_down,
        )


class LifecycleBench:
    def __init__(self) -> None:
        self.controller = FakeController()
        self.offset = 50
        self.fatal: list[str] = []
        self.links = ScriptedLinks(c1=self.controller)
        registration = Registration(
            3, "cluster", bytes([1] * 16), (), None, (bytes([2] * 16),), 12, {"f": (1, 2)}, start_id=bytes([4] * 16)
        )
        config = LifecycleConfig(
            heartbeat_interval_s=0.02,
            call_timeout_s=0.2,
            registration_pause_s=0.002,
            shutdown_timeout_s=0.3,
            shutdown_poll_s=0.005,
        )
        self.lifecycle = BrokerLifecycle(
            clock_ports(), self.links.channel(), registration, config, lambda: self.offset, self.fatal.append
        )

    async def settle(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(3):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_from_starting_to_running() -> None:
    bench = LifecycleBench()
    bench.controller.registration_codes = [int(ErrorCode.DUPLICATE_BROKER_REGISTRATION)] * 2
    lifecycle = bench.lifecycle
    assert lifecycle.state == "starting"
    assert await lifecycle.start() == 40
    sent = bench.controller.registrations
    assert len(sent) == 3
    assert len({r.incarnation_id for r in sent}) == 1
    assert (sent[0].broker_id, sent[0].previous_broker_epoch, len(sent[0].features)) == (3, 12, 1)
    assert raw_uuid(sent[0].start_id) == bytes([4] * 16)
    assert lifecycle.state == "recovering"
    await bench.settle(lambda: bench.controller.heartbeats)
    assert all(h.want_fence for h in bench.controller.heartbeats)
    lifecycle.logs_recovered()
    await lifecycle.wait_unfenced()
    assert (lifecycle.state, lifecycle.fenced) == ("running", False)
    await lifecycle.stop()
    assert lifecycle.state == "stopped"


async def test_it_is_unfenced_as_soon_as_its_metadata_is_there() -> None:
    bench = LifecycleBench()
    bench.offset = 10
    await bench.lifecycle.start()
    bench.lifecycle.logs_recovered()
    await bench.settle(lambda: len(bench.controller.heartbeats) > 1)
    assert bench.lifecycle.fenced
    bench.offset = 41
    bench.lifecycle.metadata_advanced()
    await bench.lifecycle.wait_unfenced()
    await bench.lifecycle.stop()


async def test_a_broker_that_finds_records_lost_registers_once_more_as_unclean() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    assert await bench.lifecycle.register_unclean(bytes(range(16))) == 40
    first, second = bench.controller.registrations
    assert first.incarnation_id != second.incarnation_id
    assert (second.previous_broker_epoch, raw_uuid(second.start_id)) == (-1, ZERO_UUID)
    bench.lifecycle.logs_recovered()
    await bench.lifecycle.wait_unfenced()
    await bench.lifecycle.stop()


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.UNSUPPORTED_VERSION])
async def test_a_registration_that_can_never_be_is_not_tried_for_ever(code: ErrorCode) -> None:
    bench = LifecycleBench()
    bench.controller.registration_codes = [int(code)] * 100
    with pytest.raises(RegistrationRefused, match="broker 3"):
        await bench.lifecycle.start()


async def test_a_broker_whose_place_was_taken_stops() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    bench.controller.heartbeat_code = int(ErrorCode.STALE_BROKER_EPOCH)
    await bench.settle(lambda: bench.fatal)
    assert "another process" in bench.fatal[0]
    assert bench.lifecycle.fenced
    await bench.lifecycle.stop()


async def test_controlled_shutdown_waits_for_the_controllers_word() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    bench.lifecycle.logs_recovered()
    await bench.lifecycle.wait_unfenced()
    stopping = asyncio.create_task(bench.lifecycle.shut_down())
    await bench.settle(lambda: any(h.want_shut_down for h in bench.controller.heartbeats))
    assert not stopping.done()
    bench.controller.may_stop = True
    assert await stopping is True
    await bench.lifecycle.stop()


async def test_controlled_shutdown_gives_up_in_time() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    assert await bench.lifecycle.shut_down() is False
    await bench.lifecycle.stop()


async def test_a_broker_whose_disk_failed_says_so_at_once() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    bench.lifecycle.logs_recovered()
    await bench.lifecycle.wait_unfenced()
    assert await bench.lifecycle.storage_failed((bytes([2] * 16),))
    assert bench.controller.heartbeats[-1].offline_log_dirs
    assert bench.controller.heartbeats[-1].want_fence
    await bench.lifecycle.stop()


async def test_a_broker_whose_disk_is_stuck_is_fenced_before_it_ends() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    bench.lifecycle.logs_recovered()
    await bench.lifecycle.wait_unfenced()
    assert not bench.controller.heartbeats[-1].storage_stuck
    assert await bench.lifecycle.withdraw() == ""
    assert bench.lifecycle.fenced
    assert bench.controller.heartbeats[-1].storage_stuck
    assert bench.controller.heartbeats[-1].want_fence
    await bench.lifecycle.stop()


async def test_a_broker_whose_disk_is_stuck_goes_on_where_it_would_be_missed() -> None:
    bench = LifecycleBench()
    bench.controller.keeps = True
    await bench.lifecycle.start()
    bench.lifecycle.logs_recovered()
    await bench.lifecycle.wait_unfenced()
    assert await bench.lifecycle.withdraw() == "another broker is down or unhealthy"
    count = len(bench.controller.heartbeats)
    await bench.settle(lambda: len(bench.controller.heartbeats) > count)
    assert not bench.controller.heartbeats[-1].storage_stuck
    assert not bench.controller.heartbeats[-1].want_fence
    assert not bench.lifecycle.fenced
    bench.links.answers[1] = vanish
    async with asyncio.timeout(2):
        assert await bench.lifecycle.withdraw() == "no controller has answered"
    await bench.lifecycle.stop()


@pytest.mark.parametrize("registered", [True, False])
async def test_a_broker_whose_disk_failed_does_not_wait_long_for_a_controller(registered: bool) -> None:
    bench = LifecycleBench()
    if registered:
        await bench.lifecycle.start()
    bench.links.answers[1] = vanish
    async with asyncio.timeout(2):
        assert not await bench.lifecycle.storage_failed((bytes([2] * 16),))
    await bench.lifecycle.stop()


async def test_heartbeats_go_on_when_the_controller_does_not_answer_for_a_while() -> None:
    bench = LifecycleBench()
    await bench.lifecycle.start()
    bench.links.answers[1] = vanish
    await asyncio.sleep(0.05)
    before = len(bench.controller.heartbeats)
    bench.links.answers[1] = bench.controller
    await bench.settle(lambda: len(bench.controller.heartbeats) > before + 1)
    assert not bench.fatal
    await bench.lifecycle.stop()
