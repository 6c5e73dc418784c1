"""The effective settings under a metadata image: those of topics' logs, and this broker's own.

Synonyms come from the declarations in `common.topic_settings`. Precedence is Kafka's: topic, dynamic setting of this
broker, dynamic setting of the cluster, the broker's static settings, the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.topics import with_retention
from common.settings import Group, Setting, overridden, settings_of
from kraft.image.metadata import MetadataImage
from storage.log.log_config import LogConfig

_SETTINGS = {field: one.setting for field, one in settings_of(LogConfig).items()}


class LogSettings:
    """Resolves topics to `LogConfig` values; topics without overrides share one value."""

    def __init__(self, node_id: int, node_settings: Mapping[str, Any]) -> None:
        """`node_settings`: the node's static settings, parsed, by Kafka's name."""
        self._node_id = node_id
        self._given = with_retention(node_settings)
        self._default: LogConfig | None = None
        self._default_of: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    def config_of(self, image: MetadataImage, topic: str) -> LogConfig:
        """The topic's log settings under `image`."""
        default = self._shared_default(image)
        overrides = image.configs.topic(topic)
        return overridden(default, overrides) if overrides else default

    def under(self, image: MetadataImage, group: Group) -> Group:
        """`group`, which holds this broker's static settings, with the dynamic settings of `image` applied."""
        return overridden(group, *self._dynamic(image))

    def of_listener_under(self, image: MetadataImage, group: Group, listener: str) -> Group:
        """As `under`, for settings with a listener's prefix."""
        return overridden(group, *self._dynamic(image), listener=listener)

    def _dynamic(self, image: MetadataImage) -> tuple[Mapping[str, str], Mapping[str, str]]:
        return image.configs.broker(self._node_id), image.configs.cluster()

    def _shared_default(self, image: MetadataImage) -> LogConfig:
        dynamic = self._dynamic(image)
        if self._default is None or self._default_of != dynamic:
            values = {field: self._default_value(setting, dynamic) for field, setting in _SETTINGS.items()}
            self._default, self._default_of = LogConfig(**values), dynamic
        return self._default

    def _default_value(self, setting: Setting, dynamic: tuple[Mapping[str, str], ...]) -> Any:
        """The setting's value without a topic override: `dynamic` by the broker setting that is its synonym, then
        static."""
        for name in setting.synonyms or [name for name in (setting.name,) if name in NODE_SETTINGS]:
            for overrides in dynamic:
                if name in overrides:
                    return setting.parse(overrides[name])
            if name in self._given:
                return self._given[name]
        return setting.default
