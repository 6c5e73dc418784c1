"""Balance: load, what is uneven, the plan with its reasons, and what was moved and why."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from common.settings import LONG_MAX
from console.access.trouble import Trouble
from console.queries.cluster import usage
from console.web.page import Act, Page
from console.web.visit import Form, Visit
from tidelog.admin.balance_admin import ADD, ALL, CANCEL, PAUSE, RESUME, RUN, BalanceAdmin
from tidelog.admin.library_client import AdminClient

FRESH_S = 3.0
MOVES_PLANNED, HISTORY_MAX = 100, 200
ACTS_BY_NAME = {"pause": PAUSE, "resume": RESUME, "cancel": CANCEL}
DONE = {"pause": "paused", "resume": "resumed", "cancel": "cancelled: what runs goes back"}
Row = dict[str, Any]


def status_of(client: AdminClient) -> Row:
    """Raises Refused and KafkaError."""
    return BalanceAdmin(client).status()


async def show(visit: Visit) -> Response:
    status, load = await asyncio.gather(
        visit.panel(status_of, key="balance", fresh_s=FRESH_S), visit.panel(usage, key="usage", fresh_s=FRESH_S)
    )
    return visit.show("balance.html", status=status, load=load)


async def plan(visit: Visit, form: Form) -> Response:
    """What would move now, and why; nothing moves."""
    toward = _brokers(form.get("toward"))
    found = await visit.ask(lambda client: BalanceAdmin(client).plan(toward, MOVES_PLANNED))
    return visit.show("_balance_plan.html", plan=found, toward=form.get("toward"))


async def begin(visit: Visit, form: Form) -> Response:
    toward = _brokers(form.get("toward"))
    at_once, throttle = form.number("at_once", 0), form.number("throttle", -1, -1, LONG_MAX)
    act = ADD if toward else RUN
    begun = await visit.act(
        lambda client: BalanceAdmin(client).alter(act, toward, moves_max=at_once, bytes_per_second=throttle)
    )
    return visit.done(f"operation {', '.join(map(str, begun))} has begun", "/balance")


async def alter(visit: Visit, form: Form) -> Response:
    name, operation = form.get("act"), form.number("operation", ALL, ALL, LONG_MAX)
    if name not in ACTS_BY_NAME:
        raise Trouble("this cannot be done with an operation")
    changed = await visit.act(lambda client: BalanceAdmin(client).alter(ACTS_BY_NAME[name], operation=operation))
    what = ", ".join(map(str, changed)) or "none"
    return visit.done(f"operation {what} was {DONE[name]}", "/balance")


async def history(visit: Visit) -> Response:
    """Operations, and moves with their reasons: of everything, a topic, or a partition."""
    topic, partition = visit.word("topic") or None, visit.number("partition", ALL, ALL, 2**31 - 1)

    def asked(client: AdminClient) -> tuple[list[Row], list[Row]]:
        balance = BalanceAdmin(client)
        operations = balance.history(limit=0)[0]
        return operations, balance.history(topic=topic, partition=partition if topic else ALL, limit=HISTORY_MAX)[1]

    panel = await visit.panel(asked)
    operations, moves = panel.value or ([], [])
    kinds = {row["id"]: row for row in operations}
    moves = [move | {"of": kinds.get(move["operation"], {})} for move in reversed(moves)]
    return visit.show(
        "balance_history.html", panel=panel, operations=list(reversed(operations))[:HISTORY_MAX], moves=moves,
        topic=topic or "", partition="" if partition == ALL else partition,
    )  # fmt: skip


def _brokers(text: str) -> list[int]:
    """Raises Trouble."""
    words = text.replace(",", " ").split()
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise Trouble("brokers are written as their ids, like 3,4")
    return [int(word) for word in words]


PAGES = (Page("/balance", show, "Balance"), Page("/balance/history", history))
ACTS = (
    Act("/balance/plan", plan, changes=False),
    Act("/balance/begin", begin),
    Act("/balance/alter", alter),
)
