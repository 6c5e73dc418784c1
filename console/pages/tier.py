"""Tier: what is in the object store and what waits, whether all agrees, and deleted topics that can come back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from starlette.responses import Response

from console.access.trouble import Trouble
from console.formats.paging import found, paged
from console.queries.tier import FRESH_S, KEY, tier
from console.web.page import Act, Page
from console.web.visit import Form, Visit

CHECK_S, RESTORE_S = 300.0, 900.0
SHOWN = 200
NAME_BYTES_MAX = 249


class Disagreement(msgspec.Struct):
    topic: str
    partition: int
    what: str
    disagreement: str
    harmless: bool = False


class _Whole(msgspec.Struct):
    partitions: int
    store: str
    disagreements: list[Disagreement]


class Report(NamedTuple):
    """What a check has found: `total` disagreements, of which the first ones are `shown`."""

    partitions: int
    store: str
    total: int
    shown: Sequence[Disagreement]


async def show(visit: Visit) -> Response:
    panel = await visit.panel(tier, key=KEY, fresh_s=FRESH_S)
    rows = found(panel.value.topics if panel.value is not None else [], visit.word("q"), lambda one: one.name)
    page = paged(rows, visit.number("page", 1, 1))
    return visit.show("tier.html", panel=panel, page=page, checked=visit.remembered("checked"))


async def check(visit: Visit, form: Form) -> Response:
    """Compares manifests, state and objects, as `tidelog tier check` does; what it found stays with the session."""
    topic = form.get("topic")
    ended = await visit.command(["tier", "check", "--json", *(["--", topic] if topic else [])], limit_s=CHECK_S)
    report = reported(ended.output)
    if report is None:
        raise Trouble(_said(ended.said) or "the check could not be made")
    result = {"at_ms": time.time_ns() // 1_000_000, "topic": topic, "by": visit.name, "report": report}
    visit.remember("checked", result)
    return visit.show("_tier_checked.html", checked=result)


def reported(output: bytes) -> Report | None:
    """Only what is shown of it, because it stays with the session. None if it is no report."""
    try:
        whole = msgspec.json.decode(output, type=_Whole)
    except msgspec.DecodeError:
        return None
    return Report(whole.partitions, whole.store, len(whole.disagreements), whole.disagreements[:SHOWN])


async def restore(visit: Visit, form: Form) -> Response:
    """Copies the deleted topic's segments and makes a topic of them."""
    name, topic_id, new = form.get("topic"), form.get("id"), form.get("as")
    if not new or len(new) > NAME_BYTES_MAX:
        raise Trouble("the new topic needs a name")
    words = ["tier", "restore", "--json", f"--as={new}"]
    if form.get("holes") == "yes":
        words.append("--allow-holes")
    ended = await visit.command([*words, "--", f"{name}@{topic_id}"], limit_s=RESTORE_S)
    visit.forget()
    if ended.code:
        raise Trouble(_said(ended.said) or "it could not be restored")
    left_out = [line for line in ended.said.splitlines() if line.startswith("left out")]
    notice = f"{name} is back as {new}" + (f"; {'; '.join(left_out)}" if left_out else "")
    return visit.done(notice, f"/topics/{new}")


def _said(text: str) -> str:
    return "; ".join(line.removeprefix("tidelog: ") for line in text.splitlines() if line.startswith("tidelog: "))


PAGES = (Page("/tier", show, "Tier"),)
ACTS = (Act("/tier/check", check, changes=False), Act("/tier/restore", restore))
