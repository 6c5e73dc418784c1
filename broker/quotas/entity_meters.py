"""The meters of client quotas, one for all clients that share a quota, as long as they are in use."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from weakref import WeakValueDictionary

from broker.quotas.meters import Meter
from broker.quotas.windows import WindowForm
from broker.security.usage import ThrottleReason
from kraft.image.client_quotas import REQUEST_PERCENTAGE

METERS_MAX = 65_536
LOOKED_AT = 3  # more than one, so that idle meters go faster than new ones come


class MeterKey(NamedTuple):
    """`user` and `client_id` are None if they make no difference; `tenant` set the quota, "" for operators."""

    quota: str
    tenant: str
    user: str | None
    client_id: str | None


class EntityMeters:
    """A meter is kept until its client is at rest, so that none begins a new window by connecting again, and as
    long as a session refers to it."""

    def __init__(self, form: WindowForm, meters_max: int = METERS_MAX) -> None:
        self._form = form
        self._most = meters_max
        self._kept: OrderedDict[MeterKey, Meter] = OrderedDict()
        self._known: WeakValueDictionary[MeterKey, Meter] = WeakValueDictionary()

    def of(self, key: MeterKey, bound: float, now: float) -> Meter:
        """The meter with this key, from now on under `bound`."""
        self._forget_idle(now)
        meter = self._known.get(key)
        if meter is None:
            form = self._form
            is_time = key.quota == REQUEST_PERCENTAGE  # as in Apache Kafka, pauses for it are of one sample at most
            meter = Meter(form, round(form.sample_s * 1000)) if is_time else Meter(form)
            self._known[key] = meter
        if meter.bound != bound:
            meter.limit(now, ThrottleReason.CLIENT_QUOTA, bound)
        self._kept[key] = meter
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return meter

    def _forget_idle(self, now: float) -> None:
        """Look at the meters that were asked for longest ago."""
        for _ in range(min(LOOKED_AT, len(self._kept))):
            key, meter = self._kept.popitem(last=False)
            if not meter.window.is_at_rest(now):
                self._kept[key] = meter

    def __len__(self) -> int:
        return len(self._known)
