"""The routing table as a file, by which the steward passes it to the workers.

The file begins with the whole table, and each change is appended to it. When the changes are longer than the table, the
steward writes a new file and renames it over the old one. So a change costs what it changes, however many tenants there
are, for each worker too. A number in shared memory changes with each table, so that workers read the disk only then.

A proxy that starts while no controller can be reached uses the file as well. A damaged one counts as absent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import NamedTuple

import msgspec

from common.checksum import crc32c
from common.lifecycle import duty
from common.pacing import Pacer, Work
from common.ports import Disk, File
from common.whole_files import write_fully
from kraft.image.sharded_map import ShardedMap
from proxy.networks import EVERYBODY, NetworkRules, Networks
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute

logger = logging.getLogger(__name__)

FILE, FILE_NEW = "routes", "routes.new"
LOOK_S = 0.1
RETRY_S = 1.0  # after a file that could not be read
FORMAT = 2
IDENTITY_BYTES = 8
PART_TENANTS = 100
PART_BYTES_MAX = 16 << 20
APPENDED_BYTES_MIN = 64 << 10  # of changes, before they make the steward write a new file
TENANT_COST = 5  # to write or read a tenant, in units of `common.pacing`
LANE = "route-file"
_FRAME = Struct(">II")  # length and CRC-32C of the MessagePack that follows


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


class _Head(msgspec.Struct, array_like=True):
    """`identity` is drawn for each file, so that a reader notices a new one."""

    format: int
    identity: bytes


class _Part(msgspec.Struct, array_like=True):
    """Some of a table's changes. They hold once the part that `is_last` has come. `brokers`: all, None: as before."""

    generation: int
    is_last: bool
    tenants: list[_Tenant]
    gone: list[str]
    brokers: list[_Broker] | None


class RouteWriter:
    """The one writer. `draw_identity` returns IDENTITY_BYTES random bytes."""

    def __init__(self, disk: Disk, draw_identity: Callable[[], bytes]) -> None:
        self._disk = disk
        self._draw_identity = draw_identity
        self._file: File | None = None  # None: the next table is written whole
        self._size = 0
        self._whole_size = 0  # of the table that the file begins with
        self._brokers: dict[int, BrokerRoute] = {}

    def writing(self, table: RoutingTable, changed: Iterable[str]) -> Work[None]:
        """Write `table`, which differs from the one written before in the routes of the tenants `changed`.

        Raises OSError; the next table is written whole then.
        """
        try:
            if self._file is None or self._size - self._whole_size > max(self._whole_size, APPENDED_BYTES_MIN):
                yield from self._replacing(table)
            else:
                yield from self._appending(self._file, table, changed)
        except BaseException:  # also when the work is cancelled
            self.close()
            raise
        self._brokers = dict(table.brokers)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _replacing(self, table: RoutingTable) -> Work[None]:
        self.close()
        if self._disk.exists(FILE_NEW):
            self._disk.remove(FILE_NEW)
        self._file, self._size, self._brokers = self._disk.open(FILE_NEW, create=True), 0, {}
        self._append(self._file, _Head(FORMAT, self._draw_identity()))
        yield from self._appending(self._file, table, table.tenants)
        self._whole_size = self._size
        self._disk.rename(FILE_NEW, FILE)

    def _appending(self, file: File, table: RoutingTable, changed: Iterable[str]) -> Work[None]:
        for some in _some_at_a_time(changed):
            tenants: list[_Tenant] = []
            gone: list[str] = []
            for one in some:
                route = table.tenants.get(one)
                if route is None:
                    gone.append(one)
                else:
                    tenants.append(_tenant(route))
            self._append(file, _Part(table.generation, False, tenants, gone, None))
            yield len(some) * TENANT_COST
        brokers = None
        if table.brokers != self._brokers:
            brokers = [_Broker(one.broker, *one.address, one.cell, one.live) for one in table.brokers.values()]
        self._append(file, _Part(table.generation, True, [], [], brokers))

    def _append(self, file: File, part: _Head | _Part) -> None:
        body = msgspec.msgpack.encode(part)
        frame = _FRAME.pack(len(body), crc32c(body)) + body
        write_fully(file, frame, self._size)
        self._size += len(frame)


def _tenant(route: TenantRoute) -> _Tenant:
    return _Tenant(
        route.tenant,
        route.cell,
        route.connections_max,
        route.connection_rate,
        route.rules.allow.texts,
        route.rules.deny.texts,
        route.visited,
    )


def _some_at_a_time(changed: Iterable[str]) -> Iterator[list[str]]:
    left = iter(changed)
    while some := list(islice(left, PART_TENANTS)):
        yield some


class _Frame(NamedTuple):
    body: bytes
    end: int


class RouteReader:
    """Reads the file, and later appended changes. `table` is the newest complete one."""

    def __init__(self, disk: Disk) -> None:
        self.table = RoutingTable()
        self._tenants = ShardedMap[str, TenantRoute]()  # of `table`
        self._disk = disk
        self._identity = b""  # of the file that `table` was read from
        self._position = 0  # of the first change that is not in `table`

    def reading(self, restricted: dict[str, None]) -> Work[None]:
        """Bring `table` up to date, and add ids of tenants that are gone from it or have other network rules in it to
        `restricted`.

        Raises OSError, DamagedRoutes and msgspec.MsgspecError when the file cannot be read. What came whole before has
        been taken over.
        """
        file = self._disk.open(FILE)
        try:
            yield from self._reading(file, file.size(), restricted)
        finally:
            with contextlib.suppress(OSError):
                file.close()

    def _reading(self, file: File, size: int, restricted: dict[str, None]) -> Work[None]:
        frame = _frame_at(file, 0, size)
        if frame is None:
            raise DamagedRoutes("it has no beginning")
        head = msgspec.msgpack.decode(frame.body, type=_Head)
        if head.format != FORMAT:
            raise DamagedRoutes(f"format {head.format} is not known")
        is_new = head.identity != self._identity
        position = frame.end if is_new else self._position
        tenants = ShardedMap[str, TenantRoute]() if is_new else self._tenants
        brokers: Mapping[int, BrokerRoute] = {} if is_new else self.table.brokers
        some: dict[str, None] = {}  # of the change that is being read
        while (frame := _frame_at(file, position, size)) is not None:
            position = frame.end
            part = msgspec.msgpack.decode(frame.body, type=_Part)
            changes = {one.tenant: _route(one) for one in part.tenants}
            tenants = tenants.changed(changes | dict.fromkeys(part.gone))
            some.update(dict.fromkeys(part.gone))
            for one, route in changes.items():
                before = self._tenants.get(one)
                if before is not None and before.rules != route.rules:
                    some[one] = None
            if part.brokers is not None:
                brokers = {one.broker: BrokerRoute(one.broker, (one.host, one.port), one.cell, one.live)
                           for one in part.brokers}  # fmt: skip
            yield (len(part.tenants) + len(part.gone)) * TENANT_COST
            if part.is_last:
                if is_new:
                    some.update((yield from _missing(self._tenants, tenants)))
                self._tenants, self.table = tenants, RoutingTable(tenants, brokers, part.generation)
                self._identity, self._position, is_new = head.identity, position, False
                restricted.update(some)
                some.clear()
        if is_new:
            raise DamagedRoutes("it ends too soon")


class DamagedRoutes(ValueError):
    """The file of routes is damaged."""


def _frame_at(file: File, position: int, size: int) -> _Frame | None:
    """None if it is missing or not completely written yet. Raises DamagedRoutes."""
    begin = position + _FRAME.size
    if begin > size:
        return None
    length, checksum = _FRAME.unpack(file.pread(_FRAME.size, position))
    if length > PART_BYTES_MAX:
        raise DamagedRoutes("a part is too long")
    if begin + length > size:
        return None
    body = file.pread(length, begin)
    if crc32c(body) != checksum:
        raise DamagedRoutes("a checksum does not fit")
    return _Frame(body, begin + length)


def _route(one: _Tenant) -> TenantRoute:
    rules = NetworkRules(Networks(one.allow), Networks(one.deny)) if one.allow or one.deny else EVERYBODY
    return TenantRoute(one.tenant, one.cell, one.connections_max, one.connection_rate, rules, one.visited)


def _missing(before: ShardedMap[str, TenantRoute], now: ShardedMap[str, TenantRoute]) -> Work[dict[str, None]]:
    """Ids that are missing in `now`."""
    found: dict[str, None] = {}
    for some in _some_at_a_time(before):
        found.update((one, None) for one in some if one not in now)
        yield len(some)
    return found


class FileRoutes:
    """A `RouteSource` over the file. `latest` returns a number that changes with each table."""

    def __init__(self, disk: Disk, latest: Callable[[], int], pacer: Pacer) -> None:
        self._reader = RouteReader(disk)
        self._latest = latest
        self._pacer = pacer
        self._seen: int | None = None  # the number of the newest table that was read
        self._refused: int | None = None  # of one that could not be read
        self._callbacks: list[Callable[[RoutingTable, Mapping[str, None]], None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def current(self) -> RoutingTable:
        return self._reader.table

    def on_change(self, callback: Callable[[RoutingTable, Mapping[str, None]], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Read the file, if it exists, and from now on its changes."""
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=duty("routes"))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S if self._refused == self._latest() else LOOK_S)
            await self._look()

    async def _look(self) -> None:
        latest = self._latest()
        if latest == self._seen:
            return
        before = self.current
        restricted: dict[str, None] = {}
        try:
            await self._pacer.run(self._reader.reading(restricted), LANE, own=True)
            self._seen = latest
        except FileNotFoundError:
            pass  # the first table has not been written yet
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            if self._refused != latest:
                logger.error("the routing table cannot be read", extra={"problem": str(error)})
            self._refused = latest
        if self.current is not before:
            for callback in self._callbacks:
                callback(self.current, restricted)
