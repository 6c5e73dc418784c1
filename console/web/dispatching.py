"""Leads requests to pages and acts: only with a session, a change only with its token, and every change is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from console.access.commands import Commands
from console.access.trouble import Trouble
from console.login.sessions import Session, Sessions
from console.queries.registry_schemas import RegistrySchemas
from console.web.page import Act, Page
from console.web.visit import POLL_HEADER, Visit, read_form

log = logging.getLogger("console.changes")
Endpoint = Callable[[Request], Any]


class Dispatching:
    """`cookie` is the name of that of sessions; `frame` is what every template gets."""

    def __init__(
        self,
        sessions: Sessions,
        cookie: str,
        templates: Environment,
        frame: Mapping[str, Any],
        *,
        read_only: bool,
        schemas: RegistrySchemas | None = None,
    ) -> None:
        self._sessions = sessions
        self._cookie = cookie
        self._templates = templates
        self._frame = frame
        self._read_only = read_only
        self._commands = Commands()
        self._schemas = schemas

    def of_page(self, page: Page) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return _to_login(request)
            visit = self._visit(request, session)
            try:
                return await page.show(visit)
            except Trouble as error:
                return self._trouble(request, visit, str(error))

        return endpoint

    def of_act(self, act: Act) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return _to_login(request)
            visit = self._visit(request, session)
            outcome = "failed"
            try:
                form = await read_form(request)
                if not session.is_token(form.raw("csrf")):
                    return self._trouble(request, visit, "the form is of another session; load the page again", 403)
                if act.changes and self._read_only:
                    return self._trouble(request, visit, "this console was started with --read-only", 403)
                answer = await act.do(visit, form)
                outcome = "done"
            except Trouble as error:
                outcome = str(error)
                return self._trouble(request, visit, outcome)
            finally:
                if act.changes:
                    fields = {"person": session.name, "path": request.url.path, "outcome": outcome}
                    log.info("a change", extra=fields)
            return answer

        return endpoint

    async def missing(self, request: Request, _: Exception) -> Response:
        return self._plain(request, "there is no such page", 404)

    async def broken(self, request: Request, _: Exception) -> Response:
        """Starlette logs what it was."""
        return self._plain(request, "the console has failed at this; its log says how", 500)

    def _visit(self, request: Request, session: Session) -> Visit:
        return Visit(request, session, self._commands, self._templates, self._frame, self._schemas)

    def _session(self, request: Request) -> Session | None:
        """A page that refreshes itself does not keep its session alive."""
        return self._sessions.of(request.cookies.get(self._cookie), is_use=POLL_HEADER not in request.headers)

    def _trouble(self, request: Request, visit: Visit, text: str, status: int = 200) -> Response:
        """In its place if a part was asked for, else as a page."""
        if visit.is_part:
            return visit.show("_trouble.html", problem=text)
        return visit.show("trouble.html", problem=text, code=409 if status == 200 else status)

    def _plain(self, request: Request, text: str, status: int) -> Response:
        session = self._session(request)
        if session is None:
            return HTMLResponse(text, status)
        visit = self._visit(request, session)
        return self._trouble(request, visit, text, status)


def _to_login(request: Request) -> Response:
    if request.headers.get("hx-request") == "true":
        return Response(status_code=200, headers={"HX-Redirect": "/login"})
    query = f"?{request.url.query}" if request.url.query else ""
    to = quote(request.url.path + query, safe="") if request.method == "GET" else ""
    return RedirectResponse(f"/login?next={to}" if to and to != "%2F" else "/login", 303)
