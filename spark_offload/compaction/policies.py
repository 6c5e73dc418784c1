"""The compaction settings of topics, from the cluster's newest metadata export; no broker is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.settings import Setting, SettingError
from common.topic_settings import TOPIC_SETTINGS
from object_store.store import ObjectStore
from records.events import Event
from tiering.bucket.keys import TierRoot
from tiering.exports.exports import METADATA, newest_exports

COMPACT = "compact"
_EVERYWHERE = ""  # the resource name of the cluster's defaults
_BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in TOPIC_SETTINGS}


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """Topic settings under their names, with underscores; milliseconds and bytes."""

    is_compacted: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    segment_bytes: int
    index_interval_bytes: int


class Policies:
    """The exported settings of one cluster."""

    def __init__(self, events: list[Event]) -> None:
        self._topics: dict[str, str] = {}  # id to name
        self._of_topic: dict[str, dict[str, str]] = {}
        self._defaults: dict[str, str] = {}
        for event in events:
            if event.get("event") == "topic":
                self._topics[str(event.get("topic_id"))] = str(event.get("name"))
            elif event.get("event") == "config" and event.get("value") is not None:
                self._take_config(event)

    def _take_config(self, event: Event) -> None:
        name, value = str(event.get("name")), str(event.get("value"))
        if event.get("resource_type") == "topic":
            self._of_topic.setdefault(str(event.get("resource_name")), {})[name] = value
        elif event.get("resource_type") == "broker" and event.get("resource_name") == _EVERYWHERE:
            self._defaults[name] = value

    def of(self, topic: str, topic_id: bytes) -> TopicPolicy | None:
        """None for a topic that the export does not know."""
        return self._policy(topic) if self._topics.get(topic_id.hex()) == topic else None

    def default(self) -> TopicPolicy:
        """The policy of a topic without settings of its own."""
        return self._policy("")

    def _policy(self, topic: str) -> TopicPolicy:
        return TopicPolicy(
            is_compacted=COMPACT in self._value(topic, "cleanup.policy"),
            delete_retention_ms=self._value(topic, "delete.retention.ms"),
            min_compaction_lag_ms=self._value(topic, "min.compaction.lag.ms"),
            segment_bytes=self._value(topic, "segment.bytes"),
            index_interval_bytes=self._value(topic, "index.interval.bytes"),
        )

    def _value(self, topic: str, name: str) -> Any:
        """The topic's own, else the cluster's dynamic default, else Kafka's. What brokers were started with is in no
        export."""
        setting = _BY_NAME[name]
        known = self._of_topic.get(topic, {})
        for text in (known.get(name), *(self._defaults.get(synonym) for synonym in setting.synonyms)):
            if text is not None:
                try:
                    return setting.parse(text)
                except SettingError:
                    continue
        return setting.default


async def read_policies(store: ObjectStore, root: TierRoot) -> Policies:
    """Raises StoreError. Without any export no topic is known."""
    exports = await newest_exports(store, root, METADATA)
    return Policies([event for export in exports for event in export.events])
