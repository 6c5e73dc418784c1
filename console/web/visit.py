"""One request of a person who is logged in, as page modules see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from common.settings import INT_MAX
from console.access.caller import Question
from console.access.commands import Commands, Ended
from console.access.trouble import Trouble
from console.login.sessions import Session
from console.queries.registry_schemas import RegistrySchemas

POLL_HEADER = "x-console-poll"
FORM_BYTES_MAX = 2 << 20
FORM_S = 20.0
FIELDS_MAX = 20_000
NUMBER_CHARACTERS_MAX = 40

T = TypeVar("T")


class Panel(NamedTuple, Generic[T]):
    """A part of a page: its `value`, or the `trouble` that it shows in its place."""

    value: T | None
    trouble: str = ""


class Form:
    """The fields of a form that was sent."""

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields

    def get(self, name: str, default: str = "") -> str:
        """Without the spaces around it."""
        return next((value.strip() for key, value in self._fields if key == name), default)

    def raw(self, name: str) -> str:
        """As it was written."""
        return next((value for key, value in self._fields if key == name), "")

    def all(self, name: str) -> list[str]:
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = INT_MAX) -> int:
        """Raises Trouble for what is no whole number from `low` to `high`; an empty field is the default."""
        return parse_number(name, self.get(name), default, low, high)


class Visit:
    """`show` answers with a page, `done` after a change. Questions go through `ask`, `act` and `panel`."""

    def __init__(
        self,
        request: Request,
        session: Session,
        commands: Commands,
        templates: Environment,
        frame: Mapping[str, Any],
        schemas: RegistrySchemas | None = None,
    ) -> None:
        self._request = request
        self._session = session
        self._commands = commands
        self._templates = templates
        self._frame = frame
        self._schemas = schemas

    # the question ------------------------------------------------------------------------------------------

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self._request.path_params[name])

    def word(self, name: str, default: str = "") -> str:
        """A field of the address, without the spaces around it."""
        return self._request.query_params.get(name, default).strip()

    def words(self, name: str) -> list[str]:
        return [one.strip() for one in self._request.query_params.getlist(name) if one.strip()]

    def number(self, name: str, default: int, low: int = 0, high: int = 2**63 - 1) -> int:
        """A field of the address; what is no number within the limits counts as the nearest, or as the default."""
        text = self.word(name)
        try:
            return min(max(int(text[:20]), low), high)
        except ValueError:
            return default

    @property
    def is_part(self) -> bool:
        """Whether the page is there already, and a part of it is asked for."""
        return self._request.headers.get("hx-request") == "true"

    @property
    def is_poll(self) -> bool:
        """Whether a page asks by itself, with no one doing anything."""
        return POLL_HEADER in self._request.headers

    @property
    def name(self) -> str:
        """Of the person."""
        return self._session.name

    # the cluster -------------------------------------------------------------------------------------------

    async def ask(
        self, question: Question[T], *, key: Hashable = None, fresh_s: float = 0.0, stale_s: float = 0.0
    ) -> T:
        """Raises Trouble, which becomes a page of its own. See `Caller.ask`."""
        return await self._session.caller.ask(
            question, key=key, fresh_s=fresh_s, stale_s=stale_s, is_patient=self.is_poll
        )

    async def act(self, change: Question[T]) -> T:
        """Raises Trouble. See `Caller.act`."""
        return await self._session.caller.act(change)

    async def panel(
        self, question: Question[T], *, key: Hashable = None, fresh_s: float = 0.0, stale_s: float = 0.0
    ) -> Panel[T]:
        """As `ask`, for a part of a page: trouble stands in its place, and the rest of the page is shown."""
        return await panel_of(self.ask(question, key=key, fresh_s=fresh_s, stale_s=stale_s))

    async def kept(self, key: Hashable, fresh_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns, or returned at most `fresh_s` seconds ago. Raises what it raises."""
        return await self._session.caller.answers.get(key, fresh_s, ask)

    def forget(self) -> None:
        """After a change by a command: all is asked again."""
        self._session.caller.answers.forget()

    def remember(self, key: str, value: Any) -> None:
        """For later pages, until the logout."""
        self._session.remembered[key] = value

    def remembered(self, key: str) -> Any:
        return self._session.remembered.get(key)

    @property
    def schemas(self) -> RegistrySchemas | None:
        """Those of the console's registry, if it has one. A tenant gets none: the console's login there is not its
        own, and shows it others' schemas."""
        return None if self._session.entry.is_tenant else self._schemas

    async def command(
        self, words: Sequence[str], *, limit_s: float, says: Callable[[str], None] = lambda line: None
    ) -> Ended:
        """A command of `tidelog` with this person's credentials. Raises Trouble; see `Commands.run`."""
        entry = self._session.entry
        return await self._commands.run(words, entry.bootstrap, entry.properties, limit_s=limit_s, says=says)

    # the answer --------------------------------------------------------------------------------------------

    def show(self, template: str, *, code: int = 200, **values: Any) -> Response:
        """A page of `console/templates`; a part of one if its name begins with `_`."""
        notices = self._session.take_notices() if not template.startswith("_") else []
        text = self._templates.get_template(template).render(
            **self._frame,
            visit=self,
            path=self._request.url.path,
            address=str(self._request.url.replace(scheme="", netloc="")),
            token=self._session.token,
            person=self._session.name,
            notices=notices,
            **values,
        )
        return HTMLResponse(text, code)

    def done(self, notice: str, to: str) -> Response:
        """After a change: the page at `to`, which says what was done."""
        self._session.notice(notice)
        if self.is_part:
            return Response(status_code=200, headers={"HX-Redirect": to})
        return RedirectResponse(to, 303)

    def with_fields(self, **fields: Any) -> str:
        """The address of this page with other fields; None removes one."""
        query = dict(self._request.query_params) | fields
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return self._request.url.path + (f"?{urlencode(kept)}" if kept else "")


async def panel_of(asked: Awaitable[T]) -> Panel[T]:
    try:
        return Panel(await asked)
    except Trouble as error:
        return Panel(None, str(error))


async def read_form(request: Request) -> Form:
    """Raises Trouble for one that is too large, too slow, or none."""
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise Trouble(f"a form has at most {FORM_BYTES_MAX} bytes")
    except TimeoutError:
        raise Trouble(f"the form did not arrive within {FORM_S:g} s") from None
    except ClientDisconnect:
        raise Trouble("the browser has gone") from None
    try:
        return Form(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        raise Trouble("this form cannot be read") from None


def parse_number(name: str, text: str, default: int | None = None, low: int = 0, high: int = INT_MAX) -> int:
    """From `low` to `high`, which are what the field of a request can hold or less. Raises Trouble."""
    if not text and default is not None:
        return default
    try:
        number = int(text) if len(text) <= NUMBER_CHARACTERS_MAX else None
    except ValueError:
        raise Trouble(f"{name}: {json.dumps(text[:40])} is no whole number") from None
    if number is None or not low <= number <= high:
        raise Trouble(f"{name}: {text[:NUMBER_CHARACTERS_MAX]} is not from {low} to {high}")
    return number
