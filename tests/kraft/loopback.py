"""Free ports on the loopback interface, and waiting for what happens there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable


def free_addresses(count: int) -> list[tuple[str, int]]:
    """Ports that nobody uses now and that the kernel gives to no outgoing connection soon."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [("127.0.0.1", int(one.getsockname()[1])) for one in held]
    for one in held:
        one.close()
    return addresses


async def until(holds: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Return as soon as `holds()`; TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what is waited for is product code, which has no event for tests
            await asyncio.sleep(0.002)
