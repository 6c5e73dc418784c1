"""What operators subscribe to of a client's metrics, from the settings of CLIENT_METRICS resources. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from msgspec import Struct

from common.checksum import crc32c
from common.client_metrics import ALL_METRICS, CLIENT_METRICS_SETTINGS, ClientMetricsSettings, Match, reading_match
from common.identifiers import uuid_text
from common.pacing import Work
from kraft.image.metadata import MetadataImage

ATTRIBUTE_LENGTH_MAX = 256  # bytes; a longer value of a client matches no pattern
PARSE_COST, MATCH_COST = 300, 20  # units of `common.pacing`, of one subscription
PREFIXES_OF_UNIT = 20  # that a name is compared with
_NO_SUBSCRIPTION = ClientMetricsSettings()
_WORD = 1 << 32


class Client(Struct, frozen=True):
    """A client instance, by the fields that subscriptions select by. `client_id` is without a tenant's prefix."""

    instance_id: UUID
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: int

    def selected(self) -> Mapping[str, str]:
        """By selector."""
        return {
            "client_instance_id": uuid_text(self.instance_id.bytes),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class Wanted(Struct, frozen=True):
    """What one client is asked for. `version`: of the subscriptions at that time."""

    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    version: int

    @property
    def cost(self) -> int:
        """Units of `common.pacing`, of `has`."""
        return 1 + len(self.metrics) // PREFIXES_OF_UNIT

    def has(self, metric: str) -> bool:
        return ALL_METRICS in self.metrics or metric.startswith(self.metrics)


class _Subscription(Struct, frozen=True):
    settings: ClientMetricsSettings
    match: Match


class Subscriptions:
    """The cluster's subscriptions, as `image` had them at the last `following`."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._of: Mapping[str, Mapping[str, str]] = {}
        self._known: list[_Subscription] = []
        self._version = 0

    @property
    def version(self) -> int:
        """Grows when a subscription changes."""
        return self._version

    def following(self) -> Work[None]:
        """Parse the image's subscriptions if they have changed."""
        given = self._image().configs.client_metrics
        if given is self._of:
            return
        known: list[_Subscription] = []
        for settings in given.values():
            one = yield from _parsed(settings)
            if one is not None:
                known.append(one)
            yield PARSE_COST
        if self._image().configs.client_metrics is given is not self._of:
            self._of, self._known, self._version = given, known, self._version + 1

    def wanted(self, client: Client) -> Work[Wanted]:
        """The sum of the subscriptions that match: all their metrics, at the shortest interval."""
        version, matching = self._version, list[ClientMetricsSettings]()
        selected = client.selected().items()
        values = {selector: value for selector, value in selected if len(value.encode()) <= ATTRIBUTE_LENGTH_MAX}
        for one in self._known:
            if (yield from _matches(one.match, values)):
                matching.append(one.settings)
            yield MATCH_COST
        prefixes = {prefix for settings in matching for prefix in settings.metrics}
        metrics = (ALL_METRICS,) if ALL_METRICS in prefixes else tuple(sorted(prefixes))
        interval_ms = min((_NO_SUBSCRIPTION.interval_ms, *(settings.interval_ms for settings in matching)))
        subscription_id = subscription_id_of(metrics, interval_ms, client.instance_id)
        return Wanted(metrics, interval_ms, subscription_id, version)


def _matches(match: Match, values: Mapping[str, str]) -> Work[bool]:
    """Whether all patterns match. Each is a step, because one may take milliseconds."""
    for selector, matches in match.items():
        value = values.get(selector)
        if value is None:
            return False
        fits = matches(value)
        yield matches.cost(value)
        if not fits:
            return False
    return True


def _parsed(given: Mapping[str, str]) -> Work[_Subscription | None]:
    """None if it has what only a later version knows."""
    try:
        settings = CLIENT_METRICS_SETTINGS.values(given).group(ClientMetricsSettings)
        return _Subscription(settings, (yield from reading_match(settings.match)))
    except ValueError:
        return None


def subscription_id_of(metrics: Sequence[str], interval_ms: int, instance_id: UUID) -> int:
    """As Apache Kafka computes it: a CRC32C of metrics and interval, XORed with the id's hash in Java."""
    checksum = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    halves = (instance_id.int >> 64) ^ (instance_id.int & ((1 << 64) - 1))
    found = checksum ^ (halves >> 32) ^ (halves & (_WORD - 1))
    return found - _WORD if found >= _WORD // 2 else found
