"""The settings that a topic's logs obey: its overrides, else the cluster's, else this broker's, else Kafka's defaults.

Synonyms come from the declarations in `common.topic_settings`; the order is Kafka's: topic, this broker's dynamic
setting, the cluster's dynamic setting, the broker's own settings, the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from common.broker_settings import NODE_SETTINGS
from common.settings import Setting
from common.topic_settings import TOPIC_SETTINGS
from kraft.image.metadata import MetadataImage
from storage.log_config import LogConfig

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_PRODUCER_EXPIRATION = "producer.id.expiration.ms"
_PRODUCERS_MAX = "tidelog.producers.per.partition.max"
_TIER_ROLL = "tidelog.tier.roll.ms"
_FIELDS = {field.name.replace("_", "."): field.name for field in dataclasses.fields(LogConfig)}


class LogSettings:
    """Resolves topics to `LogConfig` values; topics without overrides share one value."""

    def __init__(self, node_id: int, node_settings: Mapping[str, Any]) -> None:
        """`node_settings`: what was given to this node, parsed, by Kafka's name."""
        self._node_id = node_id
        self._given = dict(node_settings)
        for name, unit_ms in (("log.retention.hours", _HOUR_MS), ("log.retention.minutes", _MINUTE_MS)):
            if "log.retention.ms" not in node_settings and self._given.get(name, -1) >= 0:  # minutes go before hours
                self._given["log.retention.ms"] = self._given[name] * unit_ms
        self._default: LogConfig | None = None
        self._default_of: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    def config_of(self, image: MetadataImage, topic: str) -> LogConfig:
        """What the topic's logs are to obey under `image`."""
        default = self._shared_default(image)
        overrides = image.configs.topic(topic)
        if not overrides:
            return default
        changes: dict[str, Any] = {}
        for name, text in overrides.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is not None and name in _FIELDS:
                changes[_FIELDS[name]] = setting.parse(text)
        return dataclasses.replace(default, **changes)

    def _shared_default(self, image: MetadataImage) -> LogConfig:
        dynamic = (image.configs.broker(self._node_id), image.configs.cluster())
        if self._default is None or self._default_of != dynamic:
            values = {
                _FIELDS[setting.name]: self._default_value(setting, dynamic)
                for setting in TOPIC_SETTINGS
                if setting.name in _FIELDS
            }
            values["producer_id_expiration_ms"] = self.node_value(image, _PRODUCER_EXPIRATION)
            values["producers_max"] = self.node_value(image, _PRODUCERS_MAX)
            values["tier_roll_ms"] = self.node_value(image, _TIER_ROLL)
            self._default, self._default_of = LogConfig(**values), dynamic
        return self._default

    def _default_value(self, setting: Setting, dynamic: tuple[Mapping[str, str], ...]) -> Any:
        for synonym in setting.synonyms:
            for overrides in dynamic:
                if synonym in overrides:
                    return setting.parse(overrides[synonym])
            if synonym in self._given:
                return self._given[synonym]
        return setting.default

    def node_value(self, image: MetadataImage, name: str) -> Any:
        """A setting of this broker as it holds under `image`."""
        for overrides in (image.configs.broker(self._node_id), image.configs.cluster()):
            if name in overrides:
                return NODE_SETTINGS[name].parse(overrides[name])
        return self._given.get(name, NODE_SETTINGS[name].default)
