"""The routing table as a file, by which the steward passes it to the workers.

A proxy that starts while no controller can be reached uses the file as well. It is replaced whole, and a damaged one
counts as absent. A number in shared memory changes with each table, so that workers read the disk only then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from common.checksum import crc32c
from common.ports import Disk
from common.whole_files import write_fully
from proxy.networks import NetworkRules, Networks
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute

logger = logging.getLogger(__name__)

FILE, FILE_NEW = "routes", "routes.new"
FILE_BYTES_MAX = 256 << 20
LOOK_S = 0.1
FORMAT = 1


class _Tenant(msgspec.Struct, array_like=True, gc=False):
    tenant: str
    cell: str
    connections_max: int | None
    connection_rate: float | None
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    visited: tuple[int, ...] = ()


class _Broker(msgspec.Struct, array_like=True, gc=False):
    broker: int
    host: str
    port: int
    cell: str
    live: bool


class _Table(msgspec.Struct, array_like=True):
    format: int
    generation: int
    tenants: list[_Tenant]
    brokers: list[_Broker]


def encode_table(table: RoutingTable) -> bytes:
    """Four bytes of CRC-32C, then MessagePack."""
    tenants = [
        _Tenant(
            one.tenant,
            one.cell,
            one.connections_max,
            one.connection_rate,
            one.rules.allow.texts,
            one.rules.deny.texts,
            one.visited,
        )
        for _, one in sorted(table.tenants.items())
    ]
    brokers = [_Broker(one.broker, *one.address, one.cell, one.live) for _, one in sorted(table.brokers.items())]
    body = msgspec.msgpack.encode(_Table(FORMAT, table.generation, tenants, brokers))
    return crc32c(body).to_bytes(4, "big") + body


def decode_table(data: bytes) -> RoutingTable:
    """The table of `encode_table`'s bytes. Raises ValueError."""
    if crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise ValueError("the checksum does not fit")
    raw = msgspec.msgpack.decode(data[4:], type=_Table)
    if raw.format != FORMAT:
        raise ValueError(f"format {raw.format} is not known")
    rules: dict[tuple[tuple[str, ...], tuple[str, ...]], NetworkRules] = {}
    tenants = {}
    for one in raw.tenants:
        lists = (one.allow, one.deny)
        if lists not in rules:  # most tenants have none
            rules[lists] = NetworkRules(Networks(one.allow), Networks(one.deny))
        tenants[one.tenant] = TenantRoute(
            one.tenant, one.cell, one.connections_max, one.connection_rate, rules[lists], one.visited
        )
    brokers = {one.broker: BrokerRoute(one.broker, (one.host, one.port), one.cell, one.live) for one in raw.brokers}
    return RoutingTable(tenants, brokers, raw.generation)


def save_table(disk: Disk, table: RoutingTable) -> None:
    """Replace the file. Raises OSError."""
    data = encode_table(table)
    if disk.exists(FILE_NEW):
        disk.remove(FILE_NEW)
    file = disk.open(FILE_NEW, create=True)
    try:
        write_fully(file, data, 0)
    finally:
        file.close()
    disk.rename(FILE_NEW, FILE)


def load_table(disk: Disk) -> RoutingTable | None:
    """None when the file is absent or unreadable."""
    try:
        file = disk.open(FILE)
    except OSError:
        return None
    try:
        size = file.size()
        data = file.pread(size, 0) if 4 < size <= FILE_BYTES_MAX else b""
        return decode_table(data)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        logger.error("the routing table cannot be read", extra={"problem": str(error)})
        return None
    finally:
        with contextlib.suppress(OSError):
            file.close()


class FileRoutes:
    """A `RouteSource` over the file. `latest` returns a number that changes with each table."""

    def __init__(self, disk: Disk, latest: Callable[[], int]) -> None:
        self._disk, self._latest = disk, latest
        self._seen = latest()
        self.current = load_table(disk) or RoutingTable()
        self._callbacks: list[Callable[[RoutingTable], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def on_change(self, callback: Callable[[RoutingTable], None]) -> None:
        self._callbacks.append(callback)

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        latest = self._latest()
        if latest != self._seen:
            table = load_table(self._disk)
            if table is not None:
                self._seen, self.current = latest, table
                for callback in self._callbacks:
                    callback(table)
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
