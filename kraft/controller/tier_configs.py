"""Rejects settings of tiered topics that would not have the intended effect. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.errors import ErrorCode, ProtocolError
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.tier import TierSettings
from common.settings import declared
from common.topic_settings import TOPIC_SETTINGS, TopicSettings
from kraft.controller.policy import ControllerPolicy
from kraft.controller.topic_configs import topic_config
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.metadata import MetadataImage
from kraft.topic_names import INTERNAL_TOPICS, TIER_TOPIC

REMOTE_STORAGE = declared(TopicSettings, "remote_storage_enable").name
COPY_DISABLE = declared(TopicSettings, "remote_log_copy_disable").name
DELETE_ON_DISABLE = declared(TopicSettings, "remote_log_delete_on_disable").name
GENERATION = declared(TopicSettings, "tidelog_tier_generation").name
TIER_URI = declared(TierSettings, "uri").name
TIER_ENABLE = declared(TierSettings, "enable").name
AS_TOTAL, UNLIMITED = -2, -1
_TRUE = "true"
_LIMITS = (("local.retention.ms", "retention.ms"), ("local.retention.bytes", "retention.bytes"))

Overrides = Mapping[str, str | None]


def default_tier_overrides(
    image: MetadataImage, policy: ControllerPolicy, topic: str, overrides: Overrides
) -> dict[str, str]:
    """Overrides for a new topic if tiering is the cluster's default.

    They are stored with the topic, so that a later change of the default does not separate the topic from its history.
    """
    default = image.configs.cluster().get(TIER_ENABLE) or policy.static.get(TIER_ENABLE) or ""
    if topic in INTERNAL_TOPICS or REMOTE_STORAGE in overrides:
        return {}
    if not _is_true(default) or not policy.static.get(TIER_URI):
        return {}
    return {REMOTE_STORAGE: _TRUE}


def check_tier(image: MetadataImage, policy: ControllerPolicy, topic: str, before: Overrides, after: Overrides) -> None:
    """Raises INVALID_CONFIG, with the reason, for overrides `after` that a topic with overrides `before` cannot have. A
    setting that existed before, and that only the cluster's defaults make invalid, is accepted."""
    if topic == TIER_TOPIC and before:  # created by the brokers, with its settings
        setting = TOPIC_SETTINGS["cleanup.policy"]
        if setting.parse(topic_config(image, after, policy, setting)[0] or "") != ("compact",):
            raise _refused(f"cleanup.policy of {topic} stays compact: by it the cluster finds what is in the tier.")
    was_tiered, is_tiered = (_is_true(overrides.get(REMOTE_STORAGE)) for overrides in (before, after))
    if was_tiered and not is_tiered and not _is_true(after.get(DELETE_ON_DISABLE)):
        raise _refused(
            f"It is invalid to disable remote storage without deleting remote data. To keep what is in the tier and "
            f"copy nothing more, set {REMOTE_STORAGE}=true,{COPY_DISABLE}=true. To disable it and delete all remote "
            f"data, set {REMOTE_STORAGE}=false,{DELETE_ON_DISABLE}=true."
        )
    if not is_tiered:
        return
    if topic in INTERNAL_TOPICS:
        raise _refused(f"{REMOTE_STORAGE} cannot be true: {topic} is the cluster's own, which is never tiered.")
    if not was_tiered and not policy.static.get(TIER_URI):
        raise _refused(
            f"{REMOTE_STORAGE} cannot be true: this cluster has no object store tier ({TIER_URI} is not set)."
        )
    names = [name for pair in _LIMITS for name in pair] + ["cleanup.policy", REMOTE_STORAGE, COPY_DISABLE]
    if all(before.get(name) == after.get(name) for name in names):
        return

    def value(name: str) -> Any:
        setting = TOPIC_SETTINGS[name]
        return setting.parse(topic_config(image, after, policy, setting)[0] or "")

    if value(COPY_DISABLE):
        for local_name, total_name in _LIMITS:
            _check_identical(local_name, value(local_name), total_name, value(total_name))
    if "delete" not in value("cleanup.policy"):
        return  # retention of the whole topic is unlimited
    for local_name, total_name in _LIMITS:
        _check_limits(local_name, value(local_name), total_name, value(total_name))


def check_generation(configs: Overrides) -> None:
    """Raises INVALID_CONFIG if a client sets the generation, which only controllers set."""
    if GENERATION in configs:
        raise _refused(f"{GENERATION} cannot be set: the controllers count how often tiering was disabled.")


def with_generation(before: Overrides, after: dict[str, str | None]) -> dict[str, str | None]:
    """`after` with the number of times that tiering was disabled, which no change may remove: by it brokers know what
    to forget of the tier, whatever they have missed."""
    count = int(before.get(GENERATION) or 0)
    if _is_true(before.get(REMOTE_STORAGE)) and not _is_true(after.get(REMOTE_STORAGE)):
        count += 1
    return after | {GENERATION: str(count)} if count else after


def check_tier_defaults(
    image: MetadataImage, policy: ControllerPolicy, resource_name: str, before: Overrides, after: Overrides
) -> None:
    """Raises INVALID_CONFIG if a broker with overrides `after`, or all (""), would by default keep more of a tiered
    topic locally than its whole retention; not if that was so `before`."""
    cluster = {} if resource_name == CLUSTER_DEFAULT else image.configs.cluster()

    def value(name: str) -> Any:
        setting = NODE_SETTINGS[name]
        text = next((given[name] for given in (after, cluster, policy.static) if name in given), None)
        return setting.default if text is None else setting.parse(text)

    for limits in _LIMITS:
        local_name, total_name = (f"log.{name}" for name in limits)
        if any(before.get(name) != after.get(name) for name in (local_name, total_name)):
            _check_limits(local_name, value(local_name), total_name, value(total_name))


def _check_limits(local_name: str, local: int, total_name: str, total: int) -> None:
    if total == UNLIMITED or local == AS_TOTAL or UNLIMITED < local <= total:
        return
    shown = "without bound" if local == UNLIMITED else str(local)
    raise _refused(
        f"{local_name} ({shown}) is larger than {total_name} ({total}): the brokers cannot keep what the topic "
        f"has lost. Use {AS_TOTAL} to keep as much as the whole topic does."
    )


def _check_identical(local_name: str, local: int, total_name: str, total: int) -> None:
    if local not in (AS_TOTAL, total):
        raise _refused(
            f"When {COPY_DISABLE} is true, {local_name} ({local}) must be {AS_TOTAL} or identical to {total_name} "
            f"({total}): what is not copied any more is kept by the brokers alone."
        )


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() == _TRUE


def _refused(sentence: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_CONFIG, sentence)
