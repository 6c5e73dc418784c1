"""The console as an ASGI application: its routes, and what they share."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from console.access.answers import Answers
from console.access.caller import THREADS_MAX, Places
from console.login.attempts import Attempts
from console.login.door import Door
from console.login.sessions import Sessions
from console.options import ConsoleOptions
from console.page_list import ACTS, PAGES
from console.queries.registry_schemas import RegistrySchemas
from console.web.dispatching import Dispatching
from console.web.entry_pages import Entrance, cookies_of
from console.web.guard import Guard
from console.web.rendering import templates
from console.web.static_files import ROUTE, StaticFolder

STATIC = Path(__file__).parent / "static"
UPKEEP_S = 60.0
LOGINS_AT_ONCE_MAX = 4


def application(
    options: ConsoleOptions,
    door: Door,
    schemas: RegistrySchemas | None = None,
    now: Callable[[], float] = time.monotonic,
) -> ASGIApp:
    """`schemas`: those of a registry, if there is one. `now`: a monotonic clock in seconds."""
    sessions = Sessions(now, lambda: secrets.token_urlsafe(32))
    threads = ThreadPoolExecutor(THREADS_MAX, "console-question")
    logins = ThreadPoolExecutor(LOGINS_AT_ONCE_MAX, "console-login")
    cookies = cookies_of(options.port, has_tls=options.has_tls)
    static = StaticFolder(STATIC)
    rendered = templates(static.address_of)
    menu = [(page.path, page.title) for page in PAGES if page.title]
    frame = {"menu": menu, "read_only": options.read_only, "where": options.where}
    entrance = Entrance(
        where=options.where,
        door=door,
        sessions=sessions,
        attempts=Attempts(now),
        threads=threads,
        logins=logins,
        places=Places(),
        templates=rendered,
        frame={name: value for name, value in frame.items() if name != "where"},
        cookies=cookies,
        answers=Answers(now),
        login_s=options.login_s,
    )
    dispatching = Dispatching(sessions, cookies.session, rendered, frame, read_only=options.read_only, schemas=schemas)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        upkeep = asyncio.create_task(_upkeep(sessions))
        yield
        upkeep.cancel()
        sessions.end_all()
        logins.shutdown(wait=True, cancel_futures=True)
        threads.shutdown(wait=True, cancel_futures=False)

    app = Starlette(
        routes=[
            Route("/login", entrance.show, methods=["GET"]),
            Route("/login", entrance.enter, methods=["POST"]),
            Route("/logout", entrance.leave, methods=["POST"]),
            Route("/ready", _ready, methods=["GET"]),
            Route(ROUTE, static.show, methods=["GET"]),
            *[Route(page.path, dispatching.of_page(page), methods=["GET"]) for page in PAGES],
            *[Route(act.path, dispatching.of_act(act), methods=["POST"]) for act in ACTS],
        ],
        exception_handlers={HTTPException: dispatching.missing, Exception: dispatching.broken},
        lifespan=lifespan,
    )
    return Guard(app, options.hosts, has_tls=options.has_tls)


async def _ready(_: Request) -> Response:
    return PlainTextResponse("ready\n")


async def _upkeep(sessions: Sessions) -> None:
    """Sessions that have ended give their connections back, and the others their answers that have aged."""
    while True:
        await asyncio.sleep(UPKEEP_S)
        sessions.end_old()
        sessions.drop_old_answers()
