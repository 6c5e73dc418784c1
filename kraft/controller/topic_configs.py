"""A topic's settings as they hold, each with where it comes from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from common.topic_settings import TOPIC_SETTINGS
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from wire.messages import CreateTopicsResponse

_TopicConfig = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs


class ConfigSource(IntEnum):
    """Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


def described_topic_configs(
    image: MetadataImage, overrides: Mapping[str, str | None], policy: ControllerPolicy
) -> list[Any]:
    """Every topic setting, in the form of a CreateTopics reply."""
    cluster = image.configs.cluster()
    described = []
    for setting in TOPIC_SETTINGS:
        value: str | None
        if setting.name in overrides:
            value, source = overrides[setting.name], ConfigSource.TOPIC
        else:
            value, source = setting.text(setting.default), ConfigSource.DEFAULT
            for given, where in ((policy.static, ConfigSource.STATIC_BROKER), (cluster, _DYNAMIC)):
                for synonym in reversed(setting.synonyms):
                    if synonym in given:
                        value, source = given[synonym], where
        described.append(
            _TopicConfig(
                name=setting.name,
                value=None if setting.sensitive else value,
                read_only=False,
                config_source=int(source),
                is_sensitive=setting.sensitive,
            )
        )
    return described


_DYNAMIC = ConfigSource.DYNAMIC_DEFAULT_BROKER
