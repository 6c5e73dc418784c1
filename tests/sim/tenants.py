"""A tenant in one of two cells, and an operator who has it moved to the other while its clients are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from broker.config import BrokerConfig
from common.errors import ErrorCode
from common.node_settings.tenants import TenantSettings
from common.ports import Address, Ports
from kraft.controller.node import ControllerConfig
from kraft.features import INITIAL_LEVELS
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ClusterRecord, FeatureLevelRecord, TenantRecord, TenantState
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.history import History
from wire.messages import MoveTenantRequest

TENANT, NAME = "lkc-aaaaaa", "a"
TOPIC, GROUP = f"{TENANT}_t", f"{TENANT}_g"
EAST, WEST = (0, 1, 2), (3, 4, 5)
BROKERS = len(EAST + WEST)
LATER_S = 2.5
MOVE = MoveTenantRequest(tenant=NAME, cell="west")


def begun() -> MetadataImage:
    """What the controllers begin with: a tenant whose id is known."""
    levels = [FeatureLevelRecord(name, level) for name, level in INITIAL_LEVELS.items()]
    tenant = TenantRecord(TENANT, NAME, "east", 1)
    return replayed(EMPTY_IMAGE, [ClusterRecord("AAAAAAAAAAAAAAAAAAAAAA"), *levels, tenant])


def in_its_cell(config: BrokerConfig) -> BrokerConfig:
    return replace(config, cell="east" if config.node_id in EAST else "west")


def with_the_tenant(config: ControllerConfig) -> ControllerConfig:
    """And moves that take their time."""
    access = TenantSettings(move_partitions_max=1, move_bytes_per_second=200_000)
    driver = structs.replace(config.driver, rebuilt=begun())
    return replace(config, policy=replace(config.policy, access=access), driver=driver)


async def ask_until_done(
    ports: Ports, bootstrap: Mapping[int, Address], history: History, name: str, request: Any
) -> None:
    """From the time that the tenant's group is at work, until some broker's answer is a yes."""
    links = ClusterLinks(ports, dict(bootstrap), history, name)
    while not history.commits:
        await links.pause()
    await asyncio.sleep(ports.random.uniform(0.0, LATER_S))
    history.counts[f"commits before the {name}"] += len(history.commits)
    while True:
        try:
            response = await links.call(ports.random.choice(list(bootstrap)), request, 0)
        except Unreachable:
            await links.pause()
            continue
        if response.error_code in (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND):
            return
        await links.pause()


def not_moved(image: MetadataImage) -> str:
    tenant = image.tenants[TENANT]
    if tenant.state is TenantState.ACTIVE and tenant.cell == tenant.keys_cell == "west":
        return ""
    return (
        f"the tenant is {tenant.state.name} in {tenant.cell}, its groups {tenant.keys_phase.name} in {tenant.keys_cell}"
    )
