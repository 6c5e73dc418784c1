"""Groups: who reads what, how far behind, and moving their offsets with a look at what that does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.responses import Response

from common.settings import LONG_MAX
from console.access.trouble import Trouble
from console.formats.paging import found, paged
from console.pages.records import time_of
from console.queries import groups as asked
from console.queries.groups import FRESH_S, KEY, STALE_S, GroupLine
from console.web.page import Act, Page
from console.web.visit import Form, Visit, parse_number
from tidelog.admin.admin_client import outcome_text
from tidelog.admin.group_resets import move, moves_of
from tidelog.admin.offset_reset import (
    CURRENT,
    EARLIEST,
    LATEST,
    LISTED,
    OFFSET,
    SHIFT,
    TIME,
    BadReset,
    Move,
    Target,
    csv_text,
    parse_csv,
    parse_duration,
    parse_topic,
)

IDLE = ("Empty", "Dead")
LAG_FRESH_S = 4.0
AGO = "ago"
TARGETS = {
    EARLIEST: "the beginning: everything is read again",
    LATEST: "the end: nothing that is there is read",
    TIME: "a time (UTC)",
    AGO: "so long ago, like PT2H or P1D",
    OFFSET: "an offset",
    SHIFT: "so many on, or back if negative",
    CURRENT: "what is committed, else the end",
}


async def listed(visit: Visit) -> Response:
    panel = await visit.panel(asked.groups, key=KEY, fresh_s=FRESH_S, stale_s=STALE_S)
    rows: list[GroupLine] = []
    states: Sequence[str] = ()
    if panel.value is not None:
        states = sorted({one.state for one in panel.value.lines})
        rows = found(panel.value.lines, visit.word("q"), lambda one: one.name)
        if state := visit.word("state"):
            rows = [one for one in rows if one.state == state]
    page = paged(rows, visit.number("page", 1, 1))
    return visit.show("groups.html", panel=panel, page=page, states=states, names=[one.name for one in page.rows])


async def lag(visit: Visit) -> Response:
    """Of the groups on a page of the list, apart from it, because it asks for much."""
    names = visit.words("name")[:100]
    panel = await visit.panel(
        lambda client: asked.lag_of(client, names), key=("lag", tuple(names)), fresh_s=LAG_FRESH_S
    )
    return visit.show("_group_lags.html", panel=panel, names=names)


async def one(visit: Visit) -> Response:
    name = visit.word("name")
    group = await visit.ask(lambda client: asked.group(client, name), key=("group", name), fresh_s=LAG_FRESH_S)
    page = paged(group.lags, visit.number("page", 1, 1), 100)
    topics = sorted({row.place.topic for row in group.lags})
    return visit.show("group.html", group=group, page=page, topics=topics, targets=TARGETS, is_idle=group.state in IDLE)


async def preview(visit: Visit, form: Form) -> Response:
    """What a reset reads again and skips, without doing it."""
    name, target, topics = form.get("name"), target_of(form), form.all("topic")
    wanted = _wanted(form.get("partitions"), topics)
    moves = await _asked(visit, name, target, wanted)
    if not moves:
        raise Trouble("the group has committed nothing in these topics: name one")
    return visit.show(
        "_group_reset.html", name=name, moves=moves, listed=csv_text(moves),
        again=sum(one.reads_again for one in moves), skips=sum(one.skips for one in moves),
    )  # fmt: skip


async def reset(visit: Visit, form: Form) -> Response:
    """To exactly what the preview has shown."""
    name = form.get("name")
    try:
        target = Target(LISTED, listed=parse_csv(form.raw("moves")))
    except BadReset as error:
        raise Trouble(str(error)) from None
    moves = await _asked(visit, name, target, [])

    refused = await visit.act(lambda client: move(client, name, moves))
    if refused:
        raise Trouble("; ".join(refused))
    again, skips = sum(one.reads_again for one in moves), sum(one.skips for one in moves)
    return visit.done(f"{name} reads {again} offsets again and skips {skips}", address_of(name))


async def delete(visit: Visit, form: Form) -> Response:
    name = form.get("name")
    if form.get("typed") != name:
        raise Trouble(f"to delete the group, write its name: {name}")
    await visit.act(lambda client: asked.delete(client, name))
    return visit.done(f"group {name} was deleted with its offsets", "/groups")


async def _asked(visit: Visit, name: str, target: Target, wanted: Sequence[tuple[str, list[int] | None]]) -> list[Move]:
    """Raises Trouble, also while the group has members."""
    row = (await visit.ask(lambda client: client.describe_groups([name])))[name]
    state = row["group_state"]
    if row["error"] and state not in IDLE:
        raise Trouble(outcome_text(str(row["error"])))
    if state not in IDLE:
        raise Trouble(f"the group is {state}: stop its members, then its offsets can be moved")
    is_all = not wanted and target.kind != LISTED
    return await visit.ask(lambda client: moves_of(client, name, target, wanted, all_topics=is_all))


def _wanted(partitions: str, topics: Sequence[str]) -> list[tuple[str, list[int] | None]]:
    """Raises Trouble."""
    try:
        return [parse_topic(f"{topic}:{partitions}" if partitions else topic) for topic in topics]
    except BadReset as error:
        raise Trouble(str(error)) from None


def target_of(form: Form) -> Target:
    """Raises Trouble."""
    kind, value = form.get("to"), form.get("value")
    if kind in (EARLIEST, LATEST, CURRENT):
        return Target(kind)
    if kind == TIME:
        return Target(TIME, time_of(value))
    if kind == AGO:
        try:
            return Target(TIME, max(0, time.time_ns() // 1_000_000 - parse_duration(value)))
        except BadReset:
            raise Trouble("a length of time is written like PT2H30M or P1D") from None
    if kind in (OFFSET, SHIFT):
        return Target(kind, parse_number("offset", value, None, 0 if kind == OFFSET else -LONG_MAX, LONG_MAX))
    raise Trouble("say where the group shall go")


def address_of(name: str) -> str:
    return "/groups/one?" + urlencode({"name": name})


PAGES = (Page("/groups", listed, "Groups"), Page("/groups/lag", lag), Page("/groups/one", one))
ACTS = (
    Act("/groups/preview", preview, changes=False),
    Act("/groups/reset", reset),
    Act("/groups/delete", delete),
)
