"""Topics: the list, one topic with its partitions, and making, widening and deleting them."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from common.settings import SettingError
from common.topic_settings import TOPIC_SETTINGS
from console.access.trouble import Trouble
from console.formats.paging import found, paged
from console.formats.setting_lines import parse_lines
from console.queries import topics
from console.queries.catalogue import FRESH_S, KEY, STALE_S, Catalogue, TopicLine, catalogue
from console.queries.cluster import cluster
from console.queries.settings import Kind, Resource, effective
from console.web.page import Act, Page
from console.web.visit import Form, Panel, Visit
from tidelog.admin.library_client import AdminClient

TIERED, DELETE_DELAY = "remote.storage.enable", "tidelog.tier.delete.delay.ms"
TOPIC_FRESH_S = 3.0
SHORT_MAX = (1 << 15) - 1
SORTS = {"name": "Name", "partitions": "Partitions", "under": "Under-replicated"}


async def listed(visit: Visit) -> Response:
    panel: Panel[Catalogue] = await visit.panel(catalogue, key=KEY, fresh_s=FRESH_S, stale_s=STALE_S)
    rows: list[TopicLine] = []
    hidden = 0
    if panel.value is not None:
        shows_internal = visit.word("internal") == "yes"
        rows = [one for one in panel.value.topics if shows_internal or not one.is_internal]
        hidden = len(panel.value.topics) - len(rows)
        rows = found(rows, visit.word("q"), lambda one: one.name)
        if visit.word("show") == "under":
            rows = [one for one in rows if one.under or one.leaderless]
        if visit.word("sort") in ("partitions", "under"):
            rows.sort(key=lambda one: -(one.partitions if visit.word("sort") == "partitions" else one.under))
    page = paged(rows, visit.number("page", 1, 1))
    return visit.show("topics.html", panel=panel, page=page, hidden=hidden, sorts=SORTS)


async def one(visit: Visit) -> Response:
    name = visit.part("topic")
    first = visit.number("first", 0, 0, 2**31 - 1)
    topic, settings, tier = await asyncio.gather(
        visit.ask(lambda client: topics.topic(client, name, first), key=("topic", name, first), fresh_s=TOPIC_FRESH_S),
        visit.panel(lambda client: effective(client, Resource(Kind.TOPIC, name)), key=("settings", name), fresh_s=5.0),
        visit.panel(lambda client: topics.tier_of(client, name), key=("tier", name), fresh_s=TOPIC_FRESH_S),
    )
    return visit.show("topic.html", topic=topic, settings=settings, tier=tier, step=topics.PARTITIONS_AT_ONCE)


async def new(visit: Visit) -> Response:
    return visit.show("topic_new.html", known=[one.name for one in TOPIC_SETTINGS if not one.inert])


async def create(visit: Visit, form: Form) -> Response:
    name = form.get("name")
    settings = parsed(form.raw("settings"))
    for setting in ("cleanup.policy", "retention.ms"):
        if value := form.get(setting):
            settings[setting] = checked(setting, value)
    partitions, replicas = form.number("partitions", -1, 1), form.number("replicas", -1, 1, SHORT_MAX)
    made = await visit.act(lambda client: topics.create(client, name, partitions, replicas, settings))
    return visit.done(f"topic {name} was created: {made[0]} partitions, {made[1]} replicas of each", f"/topics/{name}")


async def widen_preview(visit: Visit, form: Form) -> Response:
    name, count = visit.part("topic"), form.number("partitions", low=1)
    now = await visit.ask(lambda client: topics.partition_count(client, name))
    if count <= now:
        raise Trouble(f"it has {now} partitions, and their number can only grow")
    await visit.ask(lambda client: topics.widen(client, name, count, only_checked=True))
    return visit.show("_topic_widen.html", name=name, count=count, now=now)


async def widen(visit: Visit, form: Form) -> Response:
    name, count = visit.part("topic"), form.number("partitions", low=1)
    await visit.act(lambda client: topics.widen(client, name, count))
    return visit.done(f"topic {name} has {count} partitions now", f"/topics/{name}")


async def delete_form(visit: Visit) -> Response:
    name = visit.part("topic")
    topic, settings, delay = await asyncio.gather(
        visit.ask(lambda client: topics.topic(client, name)),
        visit.panel(lambda client: effective(client, Resource(Kind.TOPIC, name), [TIERED])),
        visit.panel(delete_delay),
    )
    is_tiered = None if settings.value is None else any(one.value == "true" for one in settings.value)
    return visit.show("topic_delete.html", topic=topic, is_tiered=is_tiered, delay_ms=delay.value)


def delete_delay(client: AdminClient) -> int | None:
    """How long the tier keeps a deleted topic, in milliseconds. Raises Refused and KafkaError."""
    broker = cluster(client).live[0]
    found = effective(client, Resource(Kind.BROKER, str(broker)), [DELETE_DELAY])
    return next((int(one.value) for one in found if one.value), None)


async def delete(visit: Visit, form: Form) -> Response:
    name = visit.part("topic")
    if form.get("typed") != name:
        raise Trouble(f"to delete the topic, write its name: {name}")
    await visit.act(lambda client: topics.delete(client, name))
    return visit.done(f"topic {name} was deleted", "/topics")


def parsed(text: str) -> dict[str, str]:
    """Raises Trouble."""
    try:
        return {name: checked(name, value) for name, value in parse_lines(text).items()}
    except SettingError as error:
        raise Trouble(str(error)) from None


def checked(name: str, value: str) -> str:
    """Raises Trouble, which names the range."""
    try:
        TOPIC_SETTINGS[name].parse(value)
    except SettingError as error:
        raise Trouble(str(error)) from None
    return value


PAGES = (
    Page("/topics", listed, "Topics"),
    Page("/new-topic", new),
    Page("/topics/{topic}", one),
    Page("/topics/{topic}/delete", delete_form),
)
ACTS = (
    Act("/new-topic", create),
    Act("/topics/{topic}/widen-preview", widen_preview, changes=False),
    Act("/topics/{topic}/widen", widen),
    Act("/topics/{topic}/delete", delete),
)
