"""A tenant in one of two cells, and an operator who has it moved to the other while its clients are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from broker.config import BrokerConfig
from broker.coordination.placement import partition_for
from common.errors import ErrorCode
from common.node_settings.tenants import TenantSettings
from common.ports import Address, Ports
from kraft.controller.node import ControllerConfig
from kraft.features import INITIAL_LEVELS, TRANSACTION_VERSION
from kraft.image.delta import replayed
from kraft.image.key_ranges import range_for
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ClusterRecord, FeatureLevelRecord, TenantRecord, TenantState
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.history import History
from wire.messages import MoveTenantRequest, UpdateFeaturesRequest

TENANT, NAME = "lkc-aaaaaa", "a"
TOPIC, GROUP = f"{TENANT}_t", f"{TENANT}_g"
EAST, WEST = (0, 1, 2), (3, 4, 5)
BROKERS = len(EAST + WEST)
LATER_S = 2.5
MOVE = MoveTenantRequest(tenant=NAME, cell="west")


RAISE = UpdateFeaturesRequest(
    timeout_ms=1_000,
    feature_updates=[
        UpdateFeaturesRequest.FeatureUpdateKey(feature=TRANSACTION_VERSION, max_version_level=2, upgrade_type=1)
    ],
    validate_only=False,
)


def begun(*, has_tenant: bool, transaction_version: int) -> MetadataImage:
    """What the controllers begin with: levels, and a tenant whose id is known."""
    initial = INITIAL_LEVELS | {TRANSACTION_VERSION: transaction_version}
    levels = [FeatureLevelRecord(name, level) for name, level in initial.items() if level]
    tenant = [TenantRecord(TENANT, NAME, "east", 1)] if has_tenant else []
    return replayed(EMPTY_IMAGE, [ClusterRecord("AAAAAAAAAAAAAAAAAAAAAA"), *levels, *tenant])


def in_its_cell(config: BrokerConfig) -> BrokerConfig:
    return replace(config, cell="east" if config.node_id in EAST else "west")


def beginning_with(config: ControllerConfig, *, has_tenant: bool, transaction_version: int) -> ControllerConfig:
    """And with moves that take their time."""
    access = TenantSettings(move_partitions_max=1, move_bytes_per_second=200_000)
    image = begun(has_tenant=has_tenant, transaction_version=transaction_version)
    driver = structs.replace(config.driver, rebuilt=image)
    return replace(config, policy=replace(config.policy, access=access), driver=driver)


async def ask_until_done(
    ports: Ports, bootstrap: Mapping[int, Address], history: History, name: str, request: Any, version: int
) -> None:
    """From the time that a group is at work, until some broker's answer is a yes."""
    links = ClusterLinks(ports, dict(bootstrap), history, name)
    while not history.commits:
        await links.pause()
    await asyncio.sleep(ports.random.uniform(0.0, LATER_S))
    history.counts[f"commits before the {name}"] += len(history.commits)
    while True:
        try:
            response = await links.call(ports.random.choice(list(bootstrap)), request, version)
        except Unreachable:
            await links.pause()
            continue
        if response.error_code in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND):
            return
        await links.pause()


def keeper(image: MetadataImage, group: str) -> int:
    """The partition that has the group: the old one until all is handed over."""
    topic = image.topics.by_name[GROUP_TOPIC]
    held = range_for(topic, image.tenants.owner(group))
    return -1 if held is None else held.first + partition_for(group, held.count)


def not_moved(image: MetadataImage) -> str:
    tenant = image.tenants[TENANT]
    cells = [tenant.cell, tenant.keys_cell, *([tenant.ids_cell] if TRANSACTION_TOPIC in image.topics else [])]
    if tenant.state is TenantState.ACTIVE and set(cells) == {"west"}:
        return ""
    keys = f"its groups in {tenant.keys_cell}, its ids in {tenant.ids_cell}, {tenant.keys_phase.name}"
    return f"the tenant is {tenant.state.name} in {tenant.cell}, {keys}"
