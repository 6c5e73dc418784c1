"""The clients that push metrics: what each was asked for, and when it may ask or push again. No I/O.

The rules are those of Apache Kafka 4.2's ClientMetricsManager. A client that has asked for its subscription may push at
once, because clients vary the first interval by half; from then on it may push once an interval.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from broker.telemetry.forgetting import ForgettingOrder, Key
from broker.telemetry.series import ClientSeries, SeriesBounds
from broker.telemetry.subscriptions import Client, Subscriptions, Wanted
from common.errors import ErrorCode, ProtocolError
from common.node_settings.telemetry import TelemetrySettings
from common.pacing import SLICE_COST, Work

EXPIRY_MS = 60_000
EXPIRY_INTERVALS = 3
EXPIRED_AT_ONCE = 20  # clients that one request may forget
CLIENTS_AT_ONCE = 200  # that a scrape looks at in one go
_NEVER = float("-inf")
_ASK_AGAIN = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})
"""After one of these errors a client asks for its subscription at once."""


class ClientInstance:
    """One client. Times are in milliseconds of a clock that never goes back."""

    def __init__(self, client: Client, wanted: Wanted, series: ClientSeries) -> None:
        self.client = client
        self.wanted = wanted
        self.series = series
        self._asked_ms = self._pushed_ms = _NEVER
        self._is_terminating = False
        self._last_error = ErrorCode.NONE
        self._expires_ms = _NEVER

    def heard(self, now_ms: float) -> None:
        self._expires_ms = now_ms + max(EXPIRY_MS, EXPIRY_INTERVALS * self.wanted.interval_ms)

    def is_expired(self, now_ms: float) -> bool:
        return now_ms >= self._expires_ms

    def ask(self, now_ms: float) -> None:
        """It asks for its subscription. Raises THROTTLING_QUOTA_EXCEEDED."""
        if now_ms - max(self._asked_ms, self._pushed_ms) >= self.wanted.interval_ms:
            self._asked_ms = now_ms
        elif self._last_error not in _ASK_AGAIN:
            raise ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self.ended(ErrorCode.NONE)

    def push(self, now_ms: float, subscription_id: int, *, terminating: bool) -> None:
        """It pushes metrics. Raises INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID."""
        was_terminating, self._is_terminating = self._is_terminating, terminating
        if was_terminating:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "the client has ended")
        may_push = self._asked_ms > self._pushed_ms or now_ms - self._pushed_ms >= self.wanted.interval_ms
        if may_push:
            self._pushed_ms = now_ms
        elif not terminating:
            raise ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        if subscription_id != self.wanted.subscription_id:
            raise ProtocolError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID)

    def ended(self, error: ErrorCode) -> None:
        """How its last request ended."""
        self._last_error = error


class ClientInstances:
    """The clients that this broker heard of last, at most `settings.clients_max`: see `ForgettingOrder`."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        bounds: SeriesBounds,
        settings: TelemetrySettings,
        now_ms: Callable[[], float],
    ) -> None:
        self._subscriptions = subscriptions
        self._bounds = bounds
        self._settings = settings
        self._now_ms = now_ms
        self._known: OrderedDict[Key, ClientInstance] = OrderedDict()  # those heard of longest ago first
        self._order = ForgettingOrder()

    def __len__(self) -> int:
        return len(self._known)

    def knows(self, tenant: str, client: Client) -> bool:
        return _key(tenant, client) in self._known

    def instance(self, tenant: str, client: Client) -> Work[ClientInstance]:
        """That of a client that sends a request. After a change of the subscriptions it is a new one, which goes on
        with the series of the old one."""
        key = _key(tenant, client)
        yield from self._subscriptions.following()
        self._expire()
        yield from self._bounds.releasing()
        found = self._present(key)
        if found is None or found.wanted.version != self._subscriptions.version:
            wanted = yield from self._subscriptions.wanted(client if found is None else found.client)
            found = self._present(key)  # another request of the client may have come
            if found is None:
                found = ClientInstance(client, wanted, ClientSeries(self._bounds, tenant, _labels(client)))
            elif found.wanted.version < wanted.version:
                found = ClientInstance(found.client, wanted, found.series)
        now_ms = self._now_ms()
        self._known[key] = found
        self._known.move_to_end(key)
        found.heard(now_ms)
        self._order.heard(key, has_series=found.series.count > 0)
        if len(self._known) > self._settings.clients_max:
            self._forget(self._order.next_but(key))
        return found

    def pushed(self, tenant: str, instance: ClientInstance) -> None:
        """A push of the client may have given it series, or its last ones may be gone."""
        key = _key(tenant, instance.client)
        found = self._known.get(key)
        if found is not None and found.series is instance.series:
            self._order.heard(key, has_series=found.series.count > 0)

    def _present(self, key: Key) -> ClientInstance | None:
        found = self._known.get(key)
        if found is not None and found.is_expired(self._now_ms()):
            self._forget(key)
            return None
        return found

    def shown(self) -> Iterator[ClientSeries | None]:
        """The series of clients that are there and have some; None where the work may be interrupted."""
        now_ms = self._now_ms()
        for number, key in enumerate(list(self._known), 1):
            found = self._known.get(key)
            if found is not None:
                if found.is_expired(now_ms):
                    self._forget(key)
                elif found.series.count:
                    yield found.series
            if number % CLIENTS_AT_ONCE == 0:
                yield None
        spent = 0
        for cost in self._bounds.releasing():
            spent += cost
            if spent >= SLICE_COST:
                yield None
                spent = 0

    def _expire(self) -> None:
        now_ms = self._now_ms()
        for key in list(islice(self._known, EXPIRED_AT_ONCE)):
            if not self._known[key].is_expired(now_ms):
                break
            self._forget(key)

    def _forget(self, key: Key) -> None:
        gone = self._known.pop(key, None)
        if gone is not None:
            self._order.forget(key)
            gone.series.close()


def _key(tenant: str, client: Client) -> Key:
    return tenant, client.instance_id.bytes


def _labels(client: Client) -> dict[str, str]:
    return {
        "client_id": client.client_id,
        "client_instance_id": client.selected()["client_instance_id"],
        "client_software_name": client.software_name,
        "client_software_version": client.software_version,
    }
