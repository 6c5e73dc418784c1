"""Clusters with cells and tenants for the tests of decisions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from kraft.controller.api_keys import decide_create_api_key
from kraft.controller.cells import decide_alter_cell
from kraft.controller.policy import ControllerPolicy
from kraft.controller.tenants import (
    decide_create_tenant,
)
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.records import (
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
)
from tests.kraft.decisions import decide_create_topics
from tests.kraft.images import POLICY, create_topics, new_cluster
from wire.messages import (
    AlterCellRequest,
    CreateApiKeyRequest,
    CreateTenantRequest,
)

CELLS = {"east": (0, 1, 2), "west": (3, 4, 5)}
NOW_MS = 1_234


def cells_of_three(cells: Mapping[str, Sequence[int]] | None = None) -> MetadataImage:
    """Live brokers in their cells, each in a rack of its own within the cell."""
    image = new_cluster()
    for cell, brokers in (cells or CELLS).items():
        for place, broker in enumerate(brokers):
            record = RegisterBrokerRecord(broker, bytes([broker]) * 16, (), f"rack-{place}", cell=cell)
            image = replayed(image, [record])
            epoch = image.brokers[broker].epoch
            image = replayed(image, [BrokerRegistrationChangeRecord(broker, epoch, fenced=False)])
    return image


def created(
    image: MetadataImage, name: str = "a", policy: ControllerPolicy = POLICY, seed: int = 1, **changed: Any
) -> tuple[MetadataImage, Any]:
    limits = [CreateTenantRequest.NewTenantLimit(name=n, value=v) for n, v in changed.pop("limits", {}).items()]
    request = CreateTenantRequest(tenant_name=name, limits=limits, **changed)
    decision = decide_create_tenant(image, request, policy, random.Random(seed), NOW_MS)
    return replayed(image, decision.records), decision.reply


def tenant_of(image: MetadataImage, name: str = "a") -> TenantImage:
    tenant = image.tenants.by_name(name)
    assert tenant is not None
    return tenant


def in_cell(cell: str, **limits: int) -> tuple[MetadataImage, TenantImage]:
    image, reply = created(cells_of_three(), cell=cell, limits=limits)
    assert reply.error_code == 0
    return image, tenant_of(image)


def with_topics(image: MetadataImage, *topics: Any, policy: ControllerPolicy = POLICY) -> tuple[MetadataImage, Any]:
    decision = decide_create_topics(image, create_topics(*topics), policy, random.Random(2))
    return replayed(image, decision.records), decision.reply.topics


def replicas_of(image: MetadataImage, topic: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in image.topics.by_name[topic].partitions.values()]


def alter_cell(image: MetadataImage, name: str, opened: int = -1, **limits: int) -> tuple[MetadataImage, int]:
    given_limits = [AlterCellRequest.AlteredCellLimit(name=n.replace("_", "."), value=v) for n, v in limits.items()]
    request = AlterCellRequest(cell_name=name, open=opened, limits=given_limits)
    decision = decide_alter_cell(image, request, POLICY)
    return replayed(image, decision.records), decision.reply.error_code


def verifier(mechanism: int, **changed: Any) -> Any:
    size = {1: 32, 2: 64}.get(mechanism, 32)
    fields = {"iterations": 4096, "salt": b"s" * 16, "stored_key": b"k" * size, "server_key": b"v" * size}
    return CreateApiKeyRequest.ApiKeyVerifier(mechanism=mechanism, **{**fields, **changed})


def key(image: MetadataImage, *roles: str, **changed: Any) -> tuple[MetadataImage, Any]:
    fields: dict[str, Any] = {"description": "", "roles": list(roles), "verifiers": [verifier(1), verifier(2)]}
    request = CreateApiKeyRequest(tenant="a", **{**fields, **changed})
    decision = decide_create_api_key(image, request, POLICY, random.Random(len(image.keys)), NOW_MS)
    return replayed(image, decision.records), decision.reply
