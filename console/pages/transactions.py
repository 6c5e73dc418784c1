"""Transactions: what is open, why, what waits behind it, and ending one."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from common.settings import LONG_MAX
from console.access.trouble import Trouble
from console.formats.paging import found, paged
from console.queries.transactions import ids, open_ones
from console.web.page import Act, Page
from console.web.visit import Form, Visit
from tidelog.admin.open_transactions import abort_in, hanging_in
from tidelog.admin.transaction_admin import Fenced, Listed, described, fence
from tidelog.admin.transaction_doctor import Place

FRESH_S, OPEN_FRESH_S = 5.0, 20.0
CAN_END = ("Ongoing",)


async def listed(visit: Visit) -> Response:
    """All transactional ids."""
    known = await visit.panel(ids, key="transactions", fresh_s=FRESH_S)
    rows: Sequence[Listed] = found(known.value or [], visit.word("q"), lambda one: one.transactional_id)
    states = sorted({one.state for one in known.value or []})
    if state := visit.word("state"):
        rows = [one for one in rows if one.state == state]
    page = paged(rows, visit.number("page", 1, 1))
    return visit.show("transactions.html", known=known, page=page, states=states)


async def opened(visit: Visit) -> Response:
    """The open ones with their reasons, apart from the rest, because every partition is asked."""
    panel = await visit.panel(open_ones, key="open transactions", fresh_s=OPEN_FRESH_S)
    return visit.show("_transactions_open.html", opened=panel)


async def one(visit: Visit) -> Response:
    name = visit.word("name")
    row = await visit.ask(lambda client: described(client, name))
    return visit.show("transaction.html", row=row, can_end=row.state in CAN_END)


async def abort(visit: Visit, form: Form) -> Response:
    """Through its coordinator."""
    name = form.get("name")
    if form.get("typed") != name:
        raise Trouble(f"to end it without its records, write its id: {name}")
    row = await visit.ask(lambda client: described(client, name))
    if row.state not in CAN_END:
        raise Trouble(f"{name} has no transaction to abort, its state is {row.state}")
    if (outcome := await visit.act(lambda client: fence(client, name))) is not Fenced.ABORTED:
        raise Trouble(f"{name}: {outcome.value}")
    return visit.done(f"the transaction of {name} was aborted; its producer must begin again", "/transactions")


async def abort_hanging(visit: Visit, form: Form) -> Response:
    """By a marker in the partition: no coordinator knows it."""
    producer = form.number("producer", high=LONG_MAX)
    place = Place(form.get("topic"), form.number("partition"))
    row = await visit.ask(lambda client: hanging_in(client, place, producer))
    await visit.act(lambda client: abort_in(client, row))
    return visit.done(f"the transaction of producer {producer} in {place} was aborted", "/transactions")


PAGES = (
    Page("/transactions", listed, "Transactions"),
    Page("/transactions/open", opened),
    Page("/transactions/one", one),
)
ACTS = (Act("/transactions/abort", abort), Act("/transactions/abort-hanging", abort_hanging))
