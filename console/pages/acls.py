"""ACLs: who may do what, looked for, created and deleted with a look at what that changes; and SCRAM users."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from starlette.responses import Response

from common.settings import SettingError
from console.access.trouble import Trouble
from console.queries import acls as asked
from console.queries.acls import AT_ONCE_MAX, Effect
from console.web.page import Act, Page
from console.web.visit import Form, Visit
from tidelog.admin.acl_admin import OPERATIONS, PATTERNS, PERMISSIONS, RESOURCES, Acl, AclWanted, checked, create

FRESH_S = 4.0
SHOWN = 100
ANYTHING = ("", "any")
FILTER_PATTERNS = {
    "": "any",
    "match": "all that apply to the name",
    "literal": "exactly the name",
    "prefixed": "a prefix",
}
CHOICES = {
    "resource": [(one, one.replace("_", " ")) for one in RESOURCES],
    "operation": [(one, one.replace("_", " ")) for one in OPERATIONS],
    "permission": [(one, one) for one in reversed(PERMISSIONS)],
    "pattern": [(one, FILTER_PATTERNS[one]) for one in PATTERNS],
}
FILTER_CHOICES = {name: [ANYTHING, *of] for name, of in CHOICES.items()} | {"pattern": list(FILTER_PATTERNS.items())}


async def listed(visit: Visit) -> Response:
    wanted, at = wanted_of(visit.word), visit.number("page", 1, 1)
    panel = await visit.panel(lambda client: asked.acls(client, wanted, at), key=("acls", wanted, at), fresh_s=FRESH_S)
    rows = panel.value.rows if panel.value is not None else ()
    return visit.show(
        "acls.html", panel=panel, page=panel.value, wanted=wanted, choices=FILTER_CHOICES, new=CHOICES,
        texts=[text_of([one]) for one in rows],
    )  # fmt: skip


async def users(visit: Visit) -> Response:
    words, at = visit.word("q"), visit.number("page", 1, 1)
    panel = await visit.panel(lambda client: asked.users(client, words, at), key=("users", words, at), fresh_s=FRESH_S)
    return visit.show("acl_users.html", panel=panel, page=panel.value)


async def create_preview(visit: Visit, form: Form) -> Response:
    """Who may do what then, and whether it is the first for what it is for."""
    acl = acl_of(form)
    effect: Effect = await visit.ask(lambda client: asked.effect_of(client, [acl]))
    if effect.acls:
        raise Trouble("this ACL is there already")
    return visit.show(
        "_acl_create.html", words=words_of(acl), acl=acl, is_first=not effect.left[0][1], text=text_of([acl])
    )


async def create_one(visit: Visit, form: Form) -> Response:
    """Exactly what the preview has shown."""
    acl = next(iter(acls_of(form.all("acls"), 1)), None)
    if acl is None:
        raise Trouble("say what the ACL is")
    await visit.act(lambda client: create(client, acl))
    return visit.done(f"the ACL was created: {words_of(acl)}", "/acls")


async def delete_preview(visit: Visit, form: Form) -> Response:
    """Of the chosen ones, or of all that match the filter."""
    if form.get("all") == "yes":
        wanted = wanted_of(form.get)
        chosen: Sequence[Acl] = await visit.ask(lambda client: asked.matching(client, wanted))
    else:
        chosen = acls_of(form.all("acls"), AT_ONCE_MAX)
    if not chosen:
        raise Trouble("choose the ACLs that are to go")
    effect: Effect = await visit.ask(lambda client: asked.effect_of(client, chosen))
    if not effect.acls:
        raise Trouble("they are gone already")
    bare = [place for place, left in effect.left if not left]
    return visit.show(
        "_acl_delete.html", acls=effect.acls[:SHOWN], count=len(effect.acls), bare=bare[:SHOWN], bare_count=len(bare),
        gone=len(chosen) - len(effect.acls), text=text_of(effect.acls),
    )  # fmt: skip


async def delete(visit: Visit, form: Form) -> Response:
    """Exactly what the preview has shown."""
    chosen = acls_of(form.all("acls"), AT_ONCE_MAX)
    if not chosen:
        raise Trouble("choose the ACLs that are to go")
    deleted = await visit.act(lambda client: asked.delete_exactly(client, chosen))
    gone = len(chosen) - len(deleted)
    return visit.done(f"{len(deleted)} ACLs were deleted" + (f"; {gone} were gone already" if gone else ""), "/acls")


def wanted_of(word: Callable[[str], str]) -> AclWanted:
    """The filter in the fields of an address or a form; what is empty matches all. A word that Kafka does not have
    becomes Trouble when it is asked for."""
    return AclWanted(**{name: word(name) or None for name in AclWanted._fields})


def acl_of(form: Form) -> Acl:
    """Raises Trouble."""
    given = {name: form.get(name) for name in Acl._fields} | {"host": form.get("host") or "*"}
    try:
        acl = checked(Acl(**given))
    except SettingError as error:
        raise Trouble(str(error)) from None
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise Trouble("a principal is written like User:alice; User:* is everyone")
    return acl


def text_of(acls: Sequence[Acl]) -> str:
    return msgspec.json.encode(acls).decode()


def acls_of(texts: Sequence[str], most: int) -> list[Acl]:
    """From what `text_of` wrote, each once. Raises Trouble."""
    try:
        found = list(dict.fromkeys(one for text in texts for one in msgspec.json.decode(text, type=list[Acl])))
        found = [checked(one) for one in found]
    except (msgspec.DecodeError, SettingError):
        raise Trouble("this list of ACLs cannot be read; load the page again") from None
    if len(found) > most:
        raise Trouble(f"at most {most} ACLs at once")
    return found


def words_of(acl: Acl) -> str:
    """As one line."""
    where = "" if acl.host == "*" else f", from {acl.host}"
    prefix = "what begins with " if acl.pattern == "prefixed" else ""
    kind, operation = acl.resource.replace("_", " "), acl.operation.replace("_", " ")
    return f"{acl.principal}: {acl.permission} {operation} on {kind} {prefix}{acl.name}{where}"


PAGES = (Page("/acls", listed, "ACLs"), Page("/acls/users", users))
ACTS = (
    Act("/acls/create-preview", create_preview, changes=False),
    Act("/acls/create", create_one),
    Act("/acls/delete-preview", delete_preview, changes=False),
    Act("/acls/delete", delete),
)
