"""Audit: what has changed, when, why and by whom, as a timeline that can be searched.

The events lie in the object store, so a command of `tidelog` reads them, which asks the brokers as this person first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from console.access.trouble import Trouble
from console.formats.paging import found
from console.web.page import Act, Page
from console.web.visit import Visit, panel_of
from records.audit_event import AuditEvent, AuditKind, from_fields
from tidelog.admin.internal_topics import is_internal

READ_S, FRESH_S = 60.0, 15.0
MOST, SHOWN = 5_000, 300
SOURCES = {"": "all, as exported", "live": "brokers' own, at once"}


async def show(visit: Visit) -> Response:
    """The form; the events come once the page is there."""
    return visit.show("audit.html", kinds=sorted(AuditKind), sources=SOURCES)


async def events(visit: Visit) -> Response:
    words = _words(visit)
    panel = await panel_of(visit.kept(("audit", tuple(words)), FRESH_S, lambda: _read(visit, words)))
    rows: Sequence[AuditEvent] = ()
    notes: Sequence[str] = ()
    if panel.value is not None:
        rows, notes = panel.value
        shows_internal = visit.word("internal") == "yes"
        rows = [one for one in rows if shows_internal or not is_internal(one.topic)]
        rows = found(rows, visit.word("q"), _text)
        if actor := visit.word("actor"):
            rows = [one for one in rows if actor in one.actor]
    newest = list(reversed(rows))
    return visit.show("_audit.html", panel=panel, rows=newest[:SHOWN], total=len(newest), notes=notes, plain=_plain)


async def _read(visit: Visit, words: Sequence[str]) -> tuple[list[AuditEvent], list[str]]:
    """Raises Trouble."""
    ended = await visit.command(["audit", "--json", f"--most={MOST}", *words], limit_s=READ_S)
    try:
        rows = [from_fields(msgspec.json.decode(line)) for line in ended.output.splitlines() if line]
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError):
        raise Trouble("the audit could not be read") from None
    notes = [line.removeprefix("tidelog: ") for line in ended.said.splitlines() if line]
    if ended.code and not rows:
        raise Trouble("; ".join(notes) or "the audit could not be read")
    return rows, notes


def _words(visit: Visit) -> list[str]:
    """The options of the command. Raises Trouble."""
    words = []
    if topic := visit.word("topic"):
        words.append(f"--topic={topic}")
        if partition := visit.word("partition"):
            words.append(f"--partition={partition}")
    if since := visit.word("since"):
        words.append(f"--since={since}")
    words += [f"--kind={kind}" for kind in visit.words("kind")]
    if visit.word("source") == "live":
        words.append("--live")
    return words


def _text(event: AuditEvent) -> str:
    return " ".join([event.event, event.topic, event.cause, event.actor, _plain(event.before), _plain(event.after)])


def _plain(values: Any) -> str:
    return (
        ", ".join(f"{name}={value}" for name, value in values.items())
        if isinstance(values, dict)
        else str(values or "")
    )


PAGES = (Page("/audit", show, "Audit"), Page("/audit/events", events))
ACTS: tuple[Act, ...] = ()
