"""Tenants' quotas and what they have reserved: 64-bit numbers, and never more promised than a cell has."""

from __future__ import annotations

import random
from typing import Any

import pytest

from common.errors import ErrorCode
from common.pacing import at_once
from common.settings import INT_MAX, LONG_MAX
from kraft.controller.policy import tenant_limit
from kraft.controller.tenants import alter_tenant, create_tenant, move_tenant
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import EGRESS, INGRESS, INGRESS_RESERVED, LIMITS, LONG_LIMITS, REQUEST_PERCENTAGE
from tests.kraft.images import POLICY
from tests.kraft.tenants import CELLS, NOW_MS, alter_cell, cells_of_three, in_cell, tenant_of
from wire.messages import AlterTenantRequest, CreateTenantRequest, MoveTenantRequest

PER_BROKER = 1_000_000
ROOM = PER_BROKER * len(CELLS["east"]) * 8 // 10


def small_cells() -> MetadataImage:
    image = cells_of_three()
    for cell in CELLS:
        image, error = alter_cell(image, cell, bandwidth_per_broker=PER_BROKER)
        assert error == 0
    return image


def create(image: MetadataImage, name: str, cell: str | None = None, **limits: int) -> tuple[MetadataImage, Any]:
    rows = [CreateTenantRequest.NewTenantLimit(name=n.replace("_", "."), value=v) for n, v in limits.items()]
    request = CreateTenantRequest(tenant_name=name, cell=cell, limits=rows)
    decision = at_once(create_tenant(image, request, POLICY, random.Random(len(image.tenants)), NOW_MS))
    return replayed(image, decision.records), decision.reply


def alter(image: MetadataImage, **limits: int) -> tuple[MetadataImage, Any]:
    rows = [AlterTenantRequest.AlteredTenantLimit(name=n.replace("_", "."), value=v) for n, v in limits.items()]
    decision = at_once(alter_tenant(image, AlterTenantRequest(tenant="a", limits=rows), POLICY))
    return replayed(image, decision.records), decision.reply


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_in_bytes_are_64_bit_numbers(limit: str) -> None:
    image, _ = in_cell("east")
    most = LONG_MAX if limit in LONG_LIMITS else INT_MAX
    rows = [AlterTenantRequest.AlteredTenantLimit(name=limit, value=value) for value in (most,)]
    image, _ = alter_cell(image, "east", bandwidth_per_broker=0)  # what its brokers can is not known
    reply = at_once(alter_tenant(image, AlterTenantRequest(tenant="a", limits=rows), POLICY))
    assert reply.reply.error_code == 0, reply.reply.error_message
    assert tenant_limit(tenant_of(replayed(image, reply.records)), limit, POLICY) == most
    if most == INT_MAX:
        rows[0].value = most + 1
        reply = at_once(alter_tenant(image, AlterTenantRequest(tenant="a", limits=rows), POLICY))
        assert reply.reply.error_code == ErrorCode.INVALID_REQUEST


def test_quotas_are_unlimited_unless_they_are_set() -> None:
    _, tenant = in_cell("east")
    assert [tenant_limit(tenant, limit, POLICY) for limit in (INGRESS, EGRESS, REQUEST_PERCENTAGE)] == [0, 0, 0]


def test_a_cell_promises_four_fifths_of_its_bandwidth() -> None:
    image, reply = create(small_cells(), "a", "east", ingress_reserved=ROOM - 10)
    assert reply.error_code == 0
    same, reply = create(image, "b", "east", egress_reserved=11)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION and "11 more do not fit" in reply.error_message
    assert same.tenants.by_name("b") is None
    image, reply = create(image, "b", "east", egress_reserved=10)
    assert reply.error_code == 0
    _, reply = alter(image, ingress_reserved=ROOM - 9)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION
    image, reply = alter(image, ingress_reserved=ROOM - 20)
    assert reply.error_code == 0 and tenant_of(image).limits[INGRESS_RESERVED] == ROOM - 20


def test_a_tenant_that_has_reserved_much_goes_where_there_is_room() -> None:
    image, _ = create(small_cells(), "a", "east", ingress_reserved=ROOM)
    for number in range(8):
        image, reply = create(image, f"b{number}", ingress_reserved=ROOM // 8)
        assert (reply.error_code, reply.cell) == (0, "west")
    _, reply = create(image, "c", ingress_reserved=100)
    assert reply.error_code == ErrorCode.POLICY_VIOLATION and "reserved" in reply.error_message
    for cell in ("west", None):
        moved = at_once(move_tenant(image, MoveTenantRequest(tenant="a", cell=cell), POLICY, random.Random(1)))
        assert moved.reply.error_code == ErrorCode.POLICY_VIOLATION, "it takes along what it has reserved"


def test_less_than_before_may_be_reserved_in_a_cell_that_has_promised_too_much() -> None:
    image, _ = create(small_cells(), "a", "east", ingress_reserved=ROOM)
    image, _ = alter_cell(image, "east", bandwidth_per_broker=1)
    image, reply = alter(image, ingress_reserved=ROOM - 1, connections_max=7)
    assert reply.error_code == 0


def test_no_more_is_reserved_than_the_quota() -> None:
    _, reply = create(small_cells(), "a", "east", ingress_bytes_per_second=99, ingress_reserved=100)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    image, reply = create(small_cells(), "a", "east", ingress_bytes_per_second=100, ingress_reserved=100)
    assert reply.error_code == 0
    _, reply = alter(image, ingress_bytes_per_second=99)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
