"""Settings: what is in effect, where it comes from, what it may be; and a change, with what it concerns."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.responses import Response

from common.settings import INT_MAX, READ_ONLY, Setting, SettingError
from console.access.trouble import Trouble
from console.formats.paging import found
from console.queries.catalogue import FRESH_S, KEY, STALE_S, catalogue
from console.queries.cluster import cluster
from console.queries.settings import ALL_BROKERS, Change, Effective, Kind, Resource, alter, effective, may_change
from console.web.page import Act, Page
from console.web.visit import Form, Visit

SETTINGS_FRESH_S = 5.0
KINDS = {"topic": Kind.TOPIC, "broker": Kind.BROKER}


async def listed(visit: Visit) -> Response:
    """Of a broker, of all brokers, or of a topic."""
    resource = resource_of(visit.word("kind", "broker"), visit.word("of", ALL_BROKERS))
    brokers, rows = await asyncio.gather(
        visit.panel(cluster, key="cluster", fresh_s=FRESH_S),
        visit.panel(lambda client: effective(client, resource), key=("settings", resource), fresh_s=SETTINGS_FRESH_S),
    )
    shown: list[Effective] = []
    if rows.value is not None:
        shown = found(rows.value, visit.word("q"), lambda one: f"{one.name} {meaning(one)}")
        if visit.word("show") == "own":
            shown = [one for one in shown if one.source != "default"]
    return visit.show("settings.html", resource=resource, brokers=brokers, rows=rows, shown=shown, kinds=KINDS)


async def one(visit: Visit) -> Response:
    resource = resource_of(visit.word("kind"), visit.word("of"))
    setting = await _effective(visit, resource, visit.word("setting"))
    return visit.show(
        "setting.html", resource=resource, setting=setting, declared=setting.declared,
        may_change=may_change(setting.declared, resource), concerns=await _concerned(visit, resource, setting.declared),
        back=address_of(resource), choices=_choices(setting),
    )  # fmt: skip


async def preview(visit: Visit, form: Form) -> Response:
    """Checked by the cluster, and said what would change; nothing is changed yet."""
    change = _change(form)
    setting = await _effective(visit, change.resource, change.setting)
    if change.value is not None and setting.declared is not None:
        try:
            setting.declared.parse(change.value)
        except SettingError as error:
            raise Trouble(str(error)) from None
    if change.value == setting.value and setting.is_own:
        raise Trouble(f"{change.setting} has this value already")
    await visit.ask(lambda client: alter(client, [change], only_checked=True))
    after = change.value if change.value is not None else next((value for _, value in setting.synonyms), None)
    concerns = await _concerned(visit, change.resource, setting.declared)
    return visit.show("_setting_preview.html", change=change, before=setting, after=after, concerns=concerns)


async def change(visit: Visit, form: Form) -> Response:
    wanted = _change(form)
    await visit.act(lambda client: alter(client, [wanted]))
    what = "has its default again" if wanted.value is None else f"is {wanted.value}"
    return visit.done(f"{wanted.setting} of {wanted.resource} {what}", address_of(wanted.resource))


async def _effective(visit: Visit, resource: Resource, name: str) -> Effective:
    rows = await visit.ask(lambda client: effective(client, resource, [name]))
    if not rows:
        raise Trouble(f"there is no setting {name} of {resource}")
    return rows[0]


async def _concerned(visit: Visit, resource: Resource, declared: Setting | None) -> str:
    """Whom a change of the setting concerns."""
    if resource.kind is Kind.TOPIC:
        return f"topic {resource.name} alone"
    when = ", after a restart" if declared is not None and declared.update == READ_ONLY else ""
    if resource.name:
        return f"broker {resource.name} alone{when}"
    brokers = await visit.panel(cluster, key="cluster", fresh_s=FRESH_S)
    topics = await visit.panel(catalogue, key=KEY, fresh_s=FRESH_S, stale_s=STALE_S)
    many = len(brokers.value.brokers) if brokers.value is not None else 0
    text = f"all {many or ''} brokers that have no value of their own{when}".replace("  ", " ")
    if declared is not None and declared.name.startswith(("log.", "min.insync", "message.", "compression.")):
        count = len(topics.value.topics) if topics.value is not None else 0
        text += f", and of {count} topics those without a value of their own"
    return text


def _choices(setting: Effective) -> list[tuple[str, str]]:
    """Of a setting that has one value of a few."""
    declared = setting.declared
    if declared is None or declared.type_name == "list":
        return []
    given = ("true", "false") if declared.type_name == "boolean" else declared.choices
    return [(one, one) for one in given]


def _change(form: Form) -> Change:
    resource = resource_of(form.get("kind"), form.get("of"))
    is_removed = form.get("remove") == "yes"
    return Change(resource, form.get("setting"), None if is_removed else form.get("value"))


def resource_of(kind: str, name: str) -> Resource:
    """Raises Trouble."""
    found_kind = KINDS.get(kind)
    if found_kind is None or (found_kind is Kind.BROKER and name and not is_broker(name)):
        raise Trouble("there are settings of topics and of brokers")
    if found_kind is Kind.TOPIC and not name:
        raise Trouble("a topic's name is missing")
    return Resource(found_kind, name)


def is_broker(name: str) -> bool:
    """Whether it is a broker's id."""
    return name.isascii() and name.isdecimal() and len(name) <= len(str(INT_MAX)) and int(name) <= INT_MAX


def address_of(resource: Resource) -> str:
    return "/settings?" + urlencode({"kind": resource.kind.name.lower(), "of": resource.name})


def meaning(setting: Effective) -> str:
    return "" if setting.declared is None else setting.declared.doc


PAGES = (Page("/settings", listed, "Settings"), Page("/settings/one", one))
ACTS = (Act("/settings/preview", preview, changes=False), Act("/settings/change", change))
