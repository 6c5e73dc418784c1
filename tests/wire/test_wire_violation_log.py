"""Lines about peers that break the protocol: some per address and minute, and the number of the others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from wire.violation_log import ADDRESSES_MAX, WINDOW_S, ViolationLog

pytestmark = pytest.mark.virtual_time


class Peer:
    """As much of a connection as the log looks at."""

    identity = None

    def __init__(self, ip: str) -> None:
        self.peer = (ip, 1)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """Event and number of connections of each line."""
    return [(record.getMessage(), getattr(record, "connections", None)) for record in caplog.records]


async def test_lines_are_bounded_by_address_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = ViolationLog(logging.getLogger("test"), lines_max=3)
    peers: list[Any] = [Peer("10.0.0.1"), Peer("10.0.0.2")]
    for _ in range(500):
        log.report(peers[0], "malformed")
    log.report(peers[1], "malformed")
    assert said(caplog) == [("connection closed", None)] * 4
    assert log.count == 501
    caplog.clear()
    await asyncio.sleep(WINDOW_S + 1)
    assert said(caplog) == [("more connections closed", 497)]
    await asyncio.sleep(WINDOW_S + 1)
    assert len(caplog.records) == 1
    for _ in range(4):
        log.report(peers[0], "malformed")  # the next minute has lines of its own
    assert said(caplog)[1:] == [("connection closed", None)] * 3


async def test_memory_of_addresses_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = ViolationLog(logging.getLogger("test"), lines_max=0)
    for number in range(3 * ADDRESSES_MAX):
        log.report(Peer(str(number)), "malformed")  # type: ignore[arg-type]
    assert said(caplog) == [("more connections closed", 1)] * (2 * ADDRESSES_MAX)
    await asyncio.sleep(WINDOW_S + 1)
    assert said(caplog) == [("more connections closed", 1)] * (3 * ADDRESSES_MAX)
