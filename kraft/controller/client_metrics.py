"""Checks of subscriptions to clients' metrics (KIP-714). No I/O.

Errors are Apache Kafka's: INVALID_REQUEST for names and for an interval out of its range, INVALID_CONFIG for values.
Patterns are RE2's; what only Java's have, such as look-ahead, is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.client_metrics import CLIENT_METRICS_SETTINGS, ClientMetricsSettings, match_of
from common.errors import ErrorCode, ProtocolError
from common.settings import declared
from kraft.controller.features import check_telemetry_level
from kraft.image.metadata import MetadataImage

SUBSCRIPTIONS_MAX = 100
"""Each is compared with each client that asks for its subscription."""
NAME_LENGTH_MAX = 249
PREFIXES_MAX = 100  # of one subscription
VALUE_LENGTH_MAX = 8_192

_INTERVAL = declared(ClientMetricsSettings, "interval_ms")
_METRICS = declared(ClientMetricsSettings, "metrics").name
_MATCH = declared(ClientMetricsSettings, "match").name


def check_client_metrics(image: MetadataImage, name: str, configs: Mapping[str, str | None]) -> None:
    """Raises INVALID_REQUEST, INVALID_CONFIG, POLICY_VIOLATION or UNSUPPORTED_VERSION unless these may be settings of
    the subscription `name`."""
    check_telemetry_level(image)
    if not name:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if len(name) > NAME_LENGTH_MAX:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"A subscription's name has at most {NAME_LENGTH_MAX} letters.")
    known = image.configs.client_metrics
    if configs and name not in known and len(known) >= SUBSCRIPTIONS_MAX:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"There may be {SUBSCRIPTIONS_MAX} subscriptions.")
    for setting, value in configs.items():
        _check(setting, value or "")


def _check(name: str, value: str) -> None:
    setting = CLIENT_METRICS_SETTINGS.get(name)
    if setting is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    if len(value) > VALUE_LENGTH_MAX:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name} may have {VALUE_LENGTH_MAX} characters.")
    if setting.type_name == "list" and value.strip() and not all(item.strip() for item in value.split(",")):
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name} has an empty item.")
    try:
        parsed = setting.parse(value)
        if name == _MATCH:
            match_of(parsed)
        if name == _METRICS and len(parsed) > PREFIXES_MAX:
            raise ValueError(f"{name}: there may be {PREFIXES_MAX} prefixes")
    except ValueError as error:
        number = value.strip().lstrip("+-")
        out_of_range = setting is _INTERVAL and number.isascii() and number.isdigit()
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST if out_of_range else ErrorCode.INVALID_CONFIG, str(error)
        ) from None
