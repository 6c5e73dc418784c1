"""The effective settings of a topic and their sources. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from common.settings import Setting
from common.topic_settings import TOPIC_SETTINGS
from kraft.controller.policy import ControllerPolicy
from kraft.image.configs import ConfigSource
from kraft.image.metadata import MetadataImage
from wire.messages import CreateTopicsResponse

_TopicConfig = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs


def described_topic_configs(
    image: MetadataImage, overrides: Mapping[str, str | None], policy: ControllerPolicy
) -> list[_TopicConfig]:
    """Every topic setting, in the form of a CreateTopics reply."""
    described = []
    for setting in TOPIC_SETTINGS:
        value, source = topic_config(image, overrides, policy, setting)
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


def topic_config(
    image: MetadataImage, overrides: Mapping[str, str | None], policy: ControllerPolicy, setting: Setting
) -> tuple[str | None, ConfigSource]:
    """The effective value for a topic with these overrides, as text, and its source."""
    if setting.name in overrides:
        return overrides[setting.name], ConfigSource.TOPIC
    for given, source in (
        (image.configs.cluster(), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (policy.static, ConfigSource.STATIC_BROKER),
    ):
        for synonym in setting.synonyms:
            if synonym in given:
                return given[synonym], source
    return setting.text(setting.default), ConfigSource.DEFAULT
