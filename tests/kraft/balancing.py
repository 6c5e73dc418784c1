"""Operations of the balancer on an image, step by step, with replicas that come into sync between the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from common.node_settings.balance import BalanceSettings
from common.pacing import Work, at_once
from kraft.controller.balance_requests import BalanceAct, alter_balance
from kraft.controller.balance_steps import BalanceStep
from kraft.fleet_records import BalanceOperationRecord
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from tests.kraft.decisions import decide_alter_partition, decide_create_topics
from tests.kraft.images import POLICY, alter_partition, create_topics, new_topic, rng, with_brokers
from wire.messages import AlterBalanceRequest

BALANCING = replace(POLICY, balance=BalanceSettings(moves_max=3, bytes_per_second=1_000))
NOW_MS = 1_000_000
Stepping = Callable[[MetadataImage, BalanceOperationRecord], BalanceStep | Work[BalanceStep]]


def with_partitions(assignments: list[list[int]], brokers: int = 4, racks: list[str] | None = None) -> MetadataImage:
    """Topic `t`, every replica in sync."""
    image = with_brokers(brokers, racks)
    return replayed(
        image,
        decide_create_topics(image, create_topics(new_topic("t", assignments=assignments)), POLICY, rng()).records,
    )


def altered(image: MetadataImage, act: BalanceAct, *brokers: int, **changed: Any) -> tuple[MetadataImage, Any]:
    decision = at_once(alter_balance(image, AlterBalanceRequest(act=act, brokers=list(brokers), **changed), NOW_MS))
    return replayed(image, decision.records), decision.reply


def operation_of(image: MetadataImage, number: int = 1) -> BalanceOperationRecord:
    return image.balance.operations[number]


def caught_up(image: MetadataImage) -> MetadataImage:
    """All replicas of moving partitions come into sync."""
    for topic_id, index in list(image.topics.index.moving):
        partition = image.topics.by_id[topic_id].partitions[index]
        live = [replica for replica in partition.replicas if image.is_active(replica)]
        image = replayed(
            image, decide_alter_partition(image, alter_partition(image, partition, live), 3, POLICY).records
        )
    return image


def stepped(image: MetadataImage, stepping: Stepping, number: int = 1) -> tuple[MetadataImage, BalanceStep]:
    found = stepping(image, operation_of(image, number))
    step = found if isinstance(found, BalanceStep) else at_once(found)
    return replayed(image, step.records), step


def finished(image: MetadataImage, stepping: Stepping, number: int = 1) -> MetadataImage:
    """Steps until the operation ends."""
    for _ in range(200):
        if operation_of(image, number).state.has_ended:
            return image
        image, step = stepped(image, stepping, number)
        if not step.records:
            image = caught_up(image)
    raise AssertionError(f"the operation has not ended: {operation_of(image, number)}")


def replicas_of(image: MetadataImage) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in image.topics.by_name["t"].partitions.values()]


def throttled(image: MetadataImage) -> list[str]:
    """The settings of throttles that are set."""
    everywhere = [name for name in image.configs.cluster() if "throttled" in name]
    return everywhere + [name for name in image.configs.topic("t") if "throttled" in name]
