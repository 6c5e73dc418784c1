"""Login and logout: the only pages for those who are not logged in."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from common.settings import SettingError
from console.access.answers import Answers
from console.access.caller import Caller, Places
from console.access.trouble import Trouble
from console.login.attempts import Attempts
from console.login.credentials import Entry, Reachable, entry_of
from console.login.door import Door
from console.login.sessions import Full, Sessions
from console.web.visit import Form, read_form
from tidelog.admin.library_client import AdminClient

COOKIE = "tidelog-console"
FIELDS = ("way", "user", "password", "token", "tenant", "chain", "key", "key_password")
OFFERED_S = 10.0
USER_MAX = 200
log = logging.getLogger("console.logins")


class Cookies(NamedTuple):
    """Their names. `secure`: they go over TLS alone, and no neighbour of the host's name can set them."""

    session: str
    door: str
    secure: bool


def cookies_of(port: int, *, has_tls: bool) -> Cookies:
    """Browsers keep one set for all ports of a host, so the names tell consoles apart."""
    name = f"{'__Host-' if has_tls else ''}{COOKIE}-{port}"
    return Cookies(name, f"{name}-door", has_tls)


@dataclass(frozen=True, slots=True)
class Entrance:
    """What login and logout work with. `logins`: threads of their own, so that neither logins keep questions waiting
    nor the other way round. `login_s`: how long brokers may take to answer one."""

    where: Reachable
    door: Door
    sessions: Sessions
    attempts: Attempts
    threads: ThreadPoolExecutor
    logins: ThreadPoolExecutor
    places: Places
    templates: Environment
    frame: Mapping[str, Any]
    cookies: Cookies
    answers: Answers
    login_s: float

    async def show(self, request: Request) -> Response:
        """GET: the form, for what the cluster offers."""
        if self.sessions.of(request.cookies.get(self.cookies.session)) is not None:
            return RedirectResponse(next_of(request.query_params.get("next", "")), 303)
        return await self._form(request, "", 200)

    async def enter(self, request: Request) -> Response:
        """POST: a session, or the form again with the reason."""
        address = request.client.host if request.client is not None else ""
        try:
            form = await read_form(request)
        except Trouble as error:
            return await self._form(request, str(error), 400)
        try:
            if not _is_same(form.raw("door"), request.cookies.get(self.cookies.door, "")):
                return await self._form(request, "the form was too old; try again", 403)
            if wait_s := self.attempts.wait_s(address, user_of(form)):
                text = f"too many attempts; try again in {max(1, round(wait_s))} s"
                return await self._form(request, text, 429, way=form.get("way"))
            cookie, name = await self._entered(form)
        except (Trouble, SettingError) as error:
            log.info("a login failed", extra={"address": address})
            return await self._form(request, str(error), 401, way=form.get("way"), tenant=form.get("tenant"))
        except Full:
            return await self._form(request, "as many people as the console takes are logged in", 503)
        log.info("logged in", extra={"address": address, "person": name})
        self.sessions.end(request.cookies.get(self.cookies.session, ""))
        answer = RedirectResponse(next_of(form.get("next")), 303)
        self._set_cookie(answer, self.cookies.session, cookie)
        self._delete_cookie(answer, self.cookies.door)
        return answer

    async def leave(self, request: Request) -> Response:
        """POST: the session ends, with its connections to brokers."""
        cookie = request.cookies.get(self.cookies.session, "")
        session = self.sessions.of(cookie)
        if session is not None:
            try:
                is_own = session.is_token((await read_form(request)).raw("token"))
            except Trouble:
                is_own = False
            if not is_own:
                return RedirectResponse("/", 303)
            self.sessions.end(cookie)
            log.info("logged out", extra={"person": session.name})
        answer = RedirectResponse("/login", 303)
        self._delete_cookie(answer, self.cookies.session)
        return answer

    async def _entered(self, form: Form) -> tuple[str, str]:
        """Raises Trouble, SettingError and Full."""
        given = {name: form.raw(name) for name in FIELDS}
        running = asyncio.get_running_loop().run_in_executor(self.logins, self._opened, given)
        try:
            entry, client = await asyncio.wait_for(asyncio.shield(running), self.login_s)
        except TimeoutError:
            running.add_done_callback(self._close_late)
            raise Trouble(f"the brokers have not answered within {self.login_s:g} s") from None
        caller = Caller(client, self.threads, Answers(time.monotonic), self.places.of(entry.owner))
        try:
            cookie, _ = self.sessions.begin(entry, caller)
        except Full:
            caller.close()
            raise
        return cookie, entry.name

    def _opened(self, given: Mapping[str, str]) -> tuple[Entry, AdminClient]:
        """In a thread: a key is opened with its password, and brokers are waited for."""
        entry = entry_of(given, self.where)
        return entry, self.door.enter(entry)

    def _close_late(self, late: asyncio.Future[tuple[Entry, AdminClient]]) -> None:
        """In a thread: closing waits for brokers."""
        if not late.cancelled() and late.exception() is None:
            self.logins.submit(late.result()[1].close)

    async def _form(self, request: Request, problem: str, status: int, *, way: str = "", tenant: str = "") -> Response:
        offered: Sequence[str] = ()
        try:
            offered = await self.answers.get("offered", OFFERED_S, self._offered)
        except Trouble as error:
            problem = problem or str(error)
        door = request.cookies.get(self.cookies.door) or self.sessions.drawn()
        text = self.templates.get_template("login.html").render(
            **self.frame, where=self.where, offered=offered, door=door, problem=problem, way=way,
            tenant=tenant, next=request.query_params.get("next", ""), person="", path="/login",
        )  # fmt: skip
        answer = HTMLResponse(text, status)
        self._set_cookie(answer, self.cookies.door, door)
        return answer

    async def _offered(self) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(self.logins, self.door.offered)

    def _set_cookie(self, answer: Response, name: str, value: str) -> None:
        answer.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=self.cookies.secure)

    def _delete_cookie(self, answer: Response, name: str) -> None:
        answer.delete_cookie(name, path="/", httponly=True, samesite="strict", secure=self.cookies.secure)


def user_of(form: Form) -> str:
    """Whose password a login tries; empty without any."""
    return f"{form.get('tenant')} {form.raw('user')}"[:USER_MAX] if form.raw("user") else ""


def next_of(path: str) -> str:
    """Where a login leads: a page of the console, whatever a link has asked for."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own and not path.startswith("/log") else "/"


def _is_same(one: str, other: str) -> bool:
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())
