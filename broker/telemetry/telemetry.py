"""The metrics of a broker's clients: from requests to series.

Of each tenant one push is read at a time, and few wait, because a push of some bytes can be a megabyte when it is
inflated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from broker.telemetry.client_instances import ClientInstance, ClientInstances
from broker.telemetry.payload import inflate, points
from broker.telemetry.series import SeriesBounds
from broker.telemetry.subscriptions import Client, Subscriptions, Wanted
from common.errors import ErrorCode, ProtocolError
from common.metrics import Metrics
from common.node_settings.telemetry import TelemetrySettings
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from records.compression import Compression

T = TypeVar("T")

WAITING_MAX = 32  # pushes, those that are read included
WAITING_OF_TENANT_MAX = 8


class Paced(Protocol):
    """Runs work in slices, in the client's turns."""

    def __call__(self, work: Work[T], /) -> Awaitable[T]: ...


_Samples = Iterator[tuple[Mapping[str, str], float] | None]


class Push(Struct, frozen=True):
    """What a client sends. `codec` is Kafka's number."""

    subscription_id: int
    terminating: bool
    codec: int
    data: bytes


class _Turns:
    """Of one tenant's pushes, one after another. `count` has those that wait and the one that is read."""

    __slots__ = ("_lock", "count")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.count = 0

    async def __aenter__(self) -> None:
        self.count += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self.count -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self.count -= 1


class ClientTelemetry:
    """`now_ms` never goes back."""

    def __init__(
        self, image: Callable[[], MetadataImage], settings: TelemetrySettings, now_ms: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._bounds = SeriesBounds(settings)
        self._clients = ClientInstances(Subscriptions(image), self._bounds, settings, now_ms)
        self._now_ms = now_ms
        self._turns: dict[str, _Turns] = {}  # by tenant that has some
        self._waiting = 0
        self._pushes = 0
        self._refused: dict[str, int] = {}

    def knows(self, tenant: str, client: Client) -> bool:
        return self._clients.knows(tenant, client)

    def subscription(self, tenant: str, client: Client) -> Work[Wanted]:
        """What the client is asked for. Raises THROTTLING_QUOTA_EXCEEDED."""
        instance = yield from self._clients.instance(tenant, client)
        try:
            instance.ask(self._now_ms())
        except ProtocolError as error:
            self._refuse(error)
            raise
        return instance.wanted

    async def push(self, tenant: str, client: Client, push: Push, paced: Paced) -> None:
        """Take a client's metrics. Raises what the client is answered."""
        instance = await paced(self._clients.instance(tenant, client))
        try:
            instance.push(self._now_ms(), push.subscription_id, terminating=push.terminating)
            codec = self._checked(push)
            if push.data and instance.wanted.metrics:
                await self._take(tenant, instance, codec, push.data, paced)
        except ProtocolError as error:
            instance.ended(error.code)
            self._refuse(error)
            raise
        self._pushes += 1
        instance.ended(ErrorCode.NONE)

    def _checked(self, push: Push) -> Compression:
        try:
            codec = Compression(push.codec)
        except ValueError:
            raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None
        if len(push.data) > self._settings.max_bytes:
            raise ProtocolError(ErrorCode.TELEMETRY_TOO_LARGE)
        return codec

    async def _take(self, tenant: str, instance: ClientInstance, codec: Compression, data: bytes, paced: Paced) -> None:
        turns = self._turns.get(tenant) or _Turns()
        if turns.count == WAITING_OF_TENANT_MAX or self._waiting == WAITING_MAX:
            raise ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._turns[tenant] = turns
        self._waiting += 1
        try:
            async with turns:
                inflated = await asyncio.to_thread(inflate, codec, data, self._settings.max_bytes)
                await paced(self._taking(tenant, instance, inflated))
        finally:
            self._waiting -= 1
            if not turns.count:
                del self._turns[tenant]

    def _taking(self, tenant: str, instance: ClientInstance, data: bytes) -> Work[None]:
        series = instance.series
        series.begin()
        try:
            self._bounds.drop((yield from points(data, instance.wanted, series.take)))
            yield from series.end()
        finally:
            self._clients.pushed(tenant, instance)

    def _refuse(self, error: ProtocolError) -> None:
        self._refused[error.code.name] = self._refused.get(error.code.name, 0) + 1

    # metrics -----------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        metrics.family("tidelog_client_metric", self._gauges)
        metrics.family("tidelog_client_metric_total", self._counters)
        metrics.counter("tidelog_telemetry_dropped_total", lambda: self._bounds.dropped)
        metrics.gauge("tidelog_telemetry_series", lambda: self._bounds.count)
        metrics.gauge("tidelog_telemetry_clients", lambda: len(self._clients))
        metrics.counter("tidelog_telemetry_pushes_total", lambda: self._pushes)
        metrics.family(
            "tidelog_telemetry_refused_total",
            lambda: [({"error": name}, float(count)) for name, count in self._refused.items()],
        )

    def _gauges(self) -> _Samples:
        for series in self._clients.shown():
            if series is None:
                yield None
            else:
                yield from series.gauges()

    def _counters(self) -> _Samples:
        for series in self._clients.shown():
            if series is None:
                yield None
            else:
                yield from series.counters()
