"""Settings of a subscription to clients' metrics (KIP-714): Kafka's names, types, defaults and ranges.

A subscription is a resource of type CLIENT_METRICS. Controllers check its settings, brokers read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.client_patterns import SHORT_PATTERN_BYTES_MAX, UNICODE_CLASSES_MAX, Matcher, matcher, unicode_classes
from common.pacing import Work, at_once
from common.settings import CLUSTER_WIDE, HOUR_MS, MINUTE_MS, Catalogue, setting

ALL_METRICS = "*"
PATTERNS_MAX = 12  # of one subscription
PATTERN_COST = 300  # to read one, in units of `common.pacing`
SELECTORS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)

Match = Mapping[str, Matcher]
"""By selector: whether a client's value matches."""


@dataclass(frozen=True, slots=True)
class ClientMetricsSettings:
    """The settings of one subscription."""

    # fmt: off
    metrics: tuple[str, ...] = setting("metrics", "list", (),
        "Prefixes of the names of metrics that clients send; * for all.", update=CLUSTER_WIDE)
    interval_ms: int = setting("interval.ms", "int", 5 * MINUTE_MS,
        "How often a client sends them.", 100, HOUR_MS, update=CLUSTER_WIDE)
    match: tuple[str, ...] = setting("match", "list", (),
        "Which clients: SELECTOR=PATTERN, where all of several must match, with patterns of RE2. Without any, all "
        "clients.", update=CLUSTER_WIDE)
    # fmt: on


CLIENT_METRICS_SETTINGS = Catalogue([ClientMetricsSettings])


def match_of(patterns: Sequence[str]) -> Match:
    """Raises ValueError, with the reason."""
    return at_once(reading_match(patterns))


def reading_match(patterns: Sequence[str]) -> Work[Match]:
    """Raises ValueError, with the reason."""
    found: dict[str, Matcher] = {}
    if len(patterns) > PATTERNS_MAX:
        raise ValueError(f"match: there may be {PATTERNS_MAX} patterns")
    if sum(map(unicode_classes, patterns)) > UNICODE_CLASSES_MAX:
        raise ValueError(f"match: the patterns together may have {UNICODE_CLASSES_MAX} classes of Unicode (\\p, \\P)")
    for pattern in patterns:
        selector, _, text = pattern.partition("=")
        selector = selector.strip()
        if not text or selector not in SELECTORS:
            raise ValueError(f"match: {pattern!r} is not SELECTOR=PATTERN with a selector of {', '.join(SELECTORS)}")
        if "=" in text:
            raise ValueError(f"match: {pattern!r} has a second '='; a PATTERN has none")
        try:
            found[selector] = matcher(text.strip(), SHORT_PATTERN_BYTES_MAX)
        except ValueError as error:
            raise ValueError(f"match: {pattern!r} is no pattern of RE2: {error}") from error
        yield PATTERN_COST
    return found
