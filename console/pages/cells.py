"""Cells: how full each is, who lives there, and whether it takes more tenants."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import Response

from common.settings import SettingError
from console.access.trouble import Trouble
from console.formats.limits import parse_limits
from console.pages.tenants import FRESH_S, cells_of
from console.web.page import Act, Page
from console.web.visit import Form, Visit
from tidelog.admin.tenant_admin import TenantAdmin

OPEN = {"open": True, "closed": False}


async def listed(visit: Visit) -> Response:
    panel = await visit.panel(cells_of, key="cells", fresh_s=FRESH_S)
    return visit.show("cells.html", panel=panel)


async def one(visit: Visit) -> Response:
    name = visit.word("name")
    rows = await visit.ask(lambda client: TenantAdmin(client).cells([name]))
    if not rows:
        raise Trouble(f"there is no cell {name}")
    return visit.show("cell.html", cell=rows[0])


async def alter(visit: Visit, form: Form) -> Response:
    name, is_open = form.get("cell"), OPEN.get(form.get("state"))
    try:
        limits = parse_limits(form.raw("limits"))
    except SettingError as error:
        raise Trouble(str(error)) from None
    await visit.act(lambda client: TenantAdmin(client).alter_cell(name, limits, is_open=is_open))
    return visit.done(f"cell {name} was altered", "/cells/one?" + urlencode({"name": name}))


PAGES = (Page("/cells", listed, "Cells"), Page("/cells/one", one))
ACTS = (Act("/cells/alter", alter),)
