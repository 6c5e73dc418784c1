"""Tenants: what each may use and uses, its keys, and moving it to another cell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from common.settings import SettingError
from console.access.trouble import Trouble
from console.formats.limits import parse_limits
from console.formats.paging import found, paged
from console.web.page import Act, Page
from console.web.visit import Form, Visit
from tidelog.admin.library_client import AdminClient
from tidelog.admin.quota_admin import Splits, described_shares
from tidelog.admin.tenant_admin import TenantAdmin

KEY, FRESH_S = "tenants", 4.0
Row = dict[str, Any]


def tenants_of(client: AdminClient) -> list[Row]:
    """Raises Refused and KafkaError."""
    return sorted(TenantAdmin(client).tenants(), key=lambda row: str(row["tenant"]))


def cells_of(client: AdminClient) -> list[Row]:
    """Raises Refused and KafkaError."""
    return TenantAdmin(client).cells()


def splits_of(client: AdminClient) -> Splits:
    """Raises Refused and KafkaError."""
    return described_shares(client, None)


async def listed(visit: Visit) -> Response:
    panel, splits, cells = await asyncio.gather(
        visit.panel(tenants_of, key=KEY, fresh_s=FRESH_S),
        visit.panel(splits_of, key="splits", fresh_s=FRESH_S),
        visit.panel(cells_of, key="cells", fresh_s=FRESH_S),
    )
    rows = found(panel.value or [], visit.word("q"), lambda row: f"{row['tenant']} {row['id']} {row['cell']}")
    throttled = {row["id"]: row for row in splits.value.tenants} if splits.value is not None else {}
    page = paged(rows, visit.number("page", 1, 1))
    return visit.show(
        "tenants.html", panel=panel, page=page, throttled=throttled, splits=splits, cells=cells.value or []
    )


async def one(visit: Visit) -> Response:
    name = visit.word("name")
    rows, keys, splits, cells = await asyncio.gather(
        visit.ask(lambda client: TenantAdmin(client).tenants([name])),
        visit.panel(lambda client: TenantAdmin(client).keys(name)),
        visit.panel(lambda client: described_shares(client, name)),
        visit.panel(cells_of, key="cells", fresh_s=FRESH_S),
    )
    if not rows:
        raise Trouble(f"there is no tenant {name}")
    shares = splits.value.tenants[0] if splits.value is not None and splits.value.tenants else None
    others = [cell["cell"] for cell in cells.value or [] if cell["cell"] != rows[0]["cell"]]
    return visit.show("tenant.html", tenant=rows[0], keys=keys, splits=splits, shares=shares, others=others)


async def create(visit: Visit, form: Form) -> Response:
    name, cell = form.get("name"), form.get("cell") or None
    limits, allow, deny = _limits(form), _networks(form, "allow"), _networks(form, "deny")
    made = await visit.act(lambda client: TenantAdmin(client).create_tenant(name, cell, limits, allow, deny))
    return visit.done(f"tenant {name} was created with the id {made.id} in cell {made.cell}", address_of(made.id))


async def alter(visit: Visit, form: Form) -> Response:
    tenant, limits, allow, deny = form.get("tenant"), _limits(form), _networks(form, "allow"), _networks(form, "deny")
    await visit.act(lambda client: TenantAdmin(client).alter_tenant(tenant, limits, allow, deny))
    return visit.done(f"tenant {tenant} was altered", address_of(tenant))


async def move(visit: Visit, form: Form) -> Response:
    tenant, cell = form.get("tenant"), form.get("cell") or None
    target = await visit.act(lambda client: TenantAdmin(client).move_tenant(tenant, cell))
    return visit.done(f"tenant {tenant} moves to cell {target}, while its clients go on", address_of(tenant))


async def delete(visit: Visit, form: Form) -> Response:
    tenant, name = form.get("tenant"), form.get("name")
    if form.get("typed") != name:
        raise Trouble(f"to delete the tenant, write its name: {name}")
    await visit.act(lambda client: TenantAdmin(client).delete_tenant(tenant))
    return visit.done(f"tenant {name} is being deleted: its keys at once, its topics in steps", "/tenants")


async def create_key(visit: Visit, form: Form) -> Response:
    """The secret is on this answer alone."""
    tenant, roles, text = form.get("tenant"), form.get("roles").split() or ["admin"], form.get("description")
    made = await visit.act(lambda client: TenantAdmin(client).create_key(tenant, roles, text))
    return visit.show("_key_made.html", made=made)


async def renew_key(visit: Visit, form: Form) -> Response:
    tenant, key = form.get("tenant"), form.get("key")
    made = await visit.act(lambda client: TenantAdmin(client).renew_key(tenant, key))
    return visit.show("_key_made.html", made=made)


async def revoke_key(visit: Visit, form: Form) -> Response:
    tenant, key = form.get("tenant"), form.get("key")
    await visit.act(lambda client: TenantAdmin(client).delete_key(key))
    return visit.done(f"key {key} was revoked", address_of(tenant))


def _limits(form: Form) -> dict[str, int]:
    """Raises Trouble."""
    try:
        return parse_limits(form.raw("limits"))
    except SettingError as error:
        raise Trouble(str(error)) from None


def _networks(form: Form, name: str) -> Sequence[str]:
    return form.get(name).replace(",", " ").split()


def address_of(tenant: str) -> str:
    return "/tenants/one?" + urlencode({"name": tenant})


PAGES = (Page("/tenants", listed, "Tenants"), Page("/tenants/one", one))
ACTS = (
    Act("/tenants/create", create),
    Act("/tenants/alter", alter),
    Act("/tenants/move", move),
    Act("/tenants/delete", delete),
    Act("/tenants/create-key", create_key),
    Act("/tenants/renew-key", renew_key),
    Act("/tenants/revoke-key", revoke_key),
)
