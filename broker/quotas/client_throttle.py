"""Charges every request to the quotas of its client, and says for how long the client has to wait.

A client waits for the longest of: what it owes because it connects too fast, the quotas of its user and client id,
which operators and its tenant may set apart, its tenant's share, and the pressure on this broker. The reason of the
longest one is counted. A response is sent with the throttle time, then its connection is muted for as long (KIP-219).
Records that a consumer may not have yet are not sent: its answer is empty. Other nodes are exempt.

What applies to a session is looked up once and kept on it, until a bound begins or ends somewhere. While none is set, a
request costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from broker.quotas.entity_meters import EntityMeters, MeterKey
from broker.quotas.meters import Meter
from broker.quotas.tenant_bounds import PRESSURE, TenantBound
from broker.quotas.timed_usage import TimedUsage, counted
from broker.quotas.windows import WindowForm
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason, Usage
from common.node_settings.quotas import QuotaSettings
from kraft.image.client_quotas import (
    CONSUMER_BYTE_RATE,
    OPERATORS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotasImage,
)
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from wire.apis import ApiKey

WITHOUT_ROOM = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs whose responses have no field for a throttle time."""
ClientId = bytes | str | None
_PRODUCE, _FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_CONNECTION_RATE = ThrottleReason.CONNECTION_RATE  # looking a member up takes longer than the rest of a free request


class TenantMeters:
    """What one tenant uses of this broker."""

    __slots__ = ("_busy_seen_s", "busy", "egress", "ingress")

    def __init__(self, form: WindowForm) -> None:
        self.ingress, self.egress, self.busy = Meter(form), Meter(form), Meter(form, round(form.sample_s * 1000))
        self._busy_seen_s: float | None = None

    def limit(self, reason: ThrottleReason, bound: TenantBound, now: float) -> None:
        at_once = reason == PRESSURE  # the broker has nothing left that could be used in advance
        self.ingress.limit(now, reason, bound.ingress, at_once=at_once, saves=bound.saves)
        self.egress.limit(now, reason, bound.egress, at_once=at_once, saves=bound.saves)
        self.busy.limit(now, reason, bound.busy, at_once=at_once, saves=bound.saves)
        if self.busy.bound is None:
            self._busy_seen_s = None

    @property
    def meters(self) -> tuple[Meter, ...]:
        return self.ingress, self.egress, self.busy

    @property
    def is_bounded(self) -> bool:
        return any(meter.bound is not None for meter in self.meters)

    def record(self, usage: Usage, in_bytes: int, out_bytes: int, now: float) -> bool:
        """Record a request, and the time that the tenant's requests have taken since the last one. Returns whether a
        pause may be due."""
        ingress, egress, busy = self.ingress, self.egress, self.busy
        if ingress.bound is not None:
            ingress.record(in_bytes, now)
        if out_bytes and egress.bound is not None:
            egress.record(out_bytes, now)
        if busy.bound is not None:
            busy_s, seen_s = usage.busy_s, self._busy_seen_s
            self._busy_seen_s = busy_s
            if seen_s is not None and busy_s > seen_s:
                busy.record(busy_s - seen_s, now)
        return ingress.is_near or egress.is_near or busy.is_near


class Charged(Struct, frozen=True):
    """What the requests of one session with one client id are charged to, as of the bounds numbered `serial`.
    `client_ids`: the id in the forms in which requests have it; `usage`: the counters of the session's tenant."""

    serial: int
    client_ids: tuple[ClientId, ...]
    usage: Usage
    produced: tuple[Meter, ...] = ()
    fetched: tuple[Meter, ...] = ()
    timed: tuple[Meter, ...] = ()
    tenant: TenantMeters | None = None
    is_free: bool = False

    def recorded(self, api_key: int, in_bytes: int, out_bytes: int, now: float) -> Sequence[Meter]:
        """Record what a request used. Returns the meters that count for it if one of them may be over its bound."""
        meters: tuple[Meter, ...] = ()
        is_near = False
        if api_key == _PRODUCE:
            meters = self.produced
            for meter in meters:
                meter.record(in_bytes, now)
                is_near |= meter.is_near
        elif api_key == _FETCH:
            meters = self.fetched
            for meter in meters:
                meter.record(out_bytes, now)
                is_near |= meter.is_near
        for meter in self.timed:  # whose time `TimedUsage` records
            is_near |= meter.is_near
        tenant = self.tenant
        if tenant is not None:
            is_near |= tenant.record(self.usage, in_bytes, out_bytes, now)
        if not is_near:
            return ()
        return meters + self.timed if tenant is None else (*meters, *self.timed, *tenant.meters)


class ClientThrottle:
    """The quotas of all clients of one broker: the request chain's throttle."""

    def __init__(self, settings: QuotaSettings, now: Callable[[], float]) -> None:
        self._form = WindowForm(settings.window_num, settings.window_size_s)
        self._now = now
        self._tenants: dict[str, TenantMeters] = {}
        self.meters = EntityMeters(self._form)
        """Of client quotas."""
        self._quotas = ClientQuotasImage()
        self._serial = 0  # of the bounds: grows when one begins or ends
        self._is_idle = True  # no bound is set anywhere

    # bounds ------------------------------------------------------------------------------------------------

    def bound_tenant(self, tenant: str, reason: ThrottleReason, bound: TenantBound) -> None:
        """See `TenantBounds`."""
        meters = self._tenants.get(tenant)
        if meters is None:
            meters = TenantMeters(self._form)
            meters.limit(reason, bound, self._now())
            if meters.is_bounded:
                self._tenants[tenant] = meters
                self._bounds_changed()
            return
        meters.limit(reason, bound, self._now())
        if not meters.is_bounded:
            del self._tenants[tenant]
            self._bounds_changed()

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply client quotas."""
        if delta.client_quotas.changed:
            self._quotas = image.client_quotas
            self._bounds_changed()

    def _bounds_changed(self) -> None:
        self._serial += 1
        self._is_idle = not self._tenants and not self._quotas

    # requests ----------------------------------------------------------------------------------------------

    def charge(self, session: ClientSession, client_id: ClientId, api_key: int, in_bytes: int, out_bytes: int) -> int:
        """Milliseconds for which the client has to wait after the response to this request; 0 within its quotas."""
        pause_ms, reason = 0, _CONNECTION_RATE
        if session.pause_ms and api_key not in WITHOUT_ROOM:
            pause_ms = session.take_pause()
        if not self._is_idle:
            charged: Charged | None = session.charged
            if charged is None or charged.serial != self._serial or client_id not in charged.client_ids:
                charged = self._charged(session, client_id)
            if not charged.is_free:
                now = self._now()
                for meter in charged.recorded(api_key, in_bytes, out_bytes, now):
                    meter_ms = meter.pause_ms(now)
                    if meter_ms > pause_ms:
                        pause_ms, reason = meter_ms, meter.reason
        if pause_ms:
            session.usage.throttled(reason, pause_ms)
        return pause_ms

    def refuses_ms(self, session: ClientSession, client_id: ClientId, out_bytes: int) -> int:
        """Milliseconds for which a Fetch has to wait before it may have `out_bytes` of records; 0 if it may have them
        now. Records nothing."""
        if self._is_idle:
            return 0
        charged = self._charged(session, client_id)
        if charged.is_free:
            return 0
        now, pause_ms, reason = self._now(), 0, ThrottleReason.SHARE
        for meter in _read_through(charged):
            meter_ms = meter.refuses_ms(now, out_bytes)
            if meter_ms > pause_ms:
                pause_ms, reason = meter_ms, meter.reason
        if pause_ms:
            session.usage.throttled(reason, pause_ms)
        return pause_ms

    def fetch_bytes_max(self, session: ClientSession, client_id: ClientId, bytes_max: int) -> int:
        """How many bytes a Fetch of at most `bytes_max` should read, because it could not have more."""
        if self._is_idle:
            return bytes_max
        charged, now = self._charged(session, client_id), self._now()
        for meter in _read_through(charged):
            bytes_max = min(bytes_max, max(int(min(meter.room(now, self._form), bytes_max)), 1))
        return bytes_max

    def _charged(self, session: ClientSession, client_id: ClientId) -> Charged:
        charged: Charged | None = session.charged
        if charged is not None and charged.serial == self._serial and client_id in charged.client_ids:
            return charged
        charged = self._found(session, client_id)
        session.charge_to(charged)
        return charged

    def _found(self, session: ClientSession, given: ClientId) -> Charged:
        """What applies to the session as of now. Counts the time of its requests, if a quota bounds it."""
        usage, client_id = counted(session.usage), _text(given)
        client_ids = (
            given,
            client_id,
            client_id.encode(),
        )  # Produce and Fetch have it as bytes, other requests as text
        if session.internal:
            return Charged(self._serial, client_ids, usage, is_free=True)
        tenant = None if session.tenant is None else self._tenants.get(session.tenant)
        produced = self._metered(session, client_id, PRODUCER_BYTE_RATE)
        fetched = self._metered(session, client_id, CONSUMER_BYTE_RATE)
        timed = self._metered(session, client_id, REQUEST_PERCENTAGE)
        session.count_in(TimedUsage(usage, timed, self._now) if timed else usage)
        is_free = tenant is None and not (produced or fetched or timed)
        return Charged(self._serial, client_ids, usage, produced, fetched, timed, tenant, is_free)

    def _metered(self, session: ClientSession, client_id: str, quota: str) -> tuple[Meter, ...]:
        """The meters of one kind of quota: operators' one, and the one that the client's tenant has set."""
        if not self._quotas:
            return ()
        user, tenant, now = session.principal.removeprefix("User:"), session.tenant, self._now()
        asked = [(OPERATORS, user)]
        if tenant is not None:
            asked.append((tenant, user.removeprefix(f"{tenant}_")))
        found: list[Meter] = []
        for setter, name in asked:
            level = self._quotas.level(setter, name, client_id, quota)
            if level is not None:
                found.append(self.meters.of(MeterKey(quota, setter, *level.shared_by), level.bound, now))
        return tuple(found)


def _text(client_id: ClientId) -> str:
    return client_id.decode(errors="replace") if isinstance(client_id, bytes) else client_id or ""


def _read_through(charged: Charged) -> Iterable[Meter]:
    return charged.fetched if charged.tenant is None else (*charged.fetched, charged.tenant.egress)
