"""What surrounds every request: headers that bind the browser, hosts that are ours, and a limit of requests at once."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.web.static_files import KEPT, PREFIX

AT_ONCE_MAX = 200
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """`hosts`: the names that browsers may ask for, besides addresses. So no page elsewhere whose name leads here can
    read an answer: a page has a name of its own, never a bare address."""

    def __init__(self, inner: ASGIApp, hosts: Collection[str], *, has_tls: bool) -> None:
        self._inner = inner
        self._hosts = hosts
        self._has_tls = has_tls
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers = Headers(scope=scope)
        guarded = self._guarded(send, scope["path"])
        if problem := self._problem(scope["method"], headers):
            await PlainTextResponse(problem, 403)(scope, receive, guarded)
        elif self._running >= AT_ONCE_MAX:
            await PlainTextResponse("too many requests at once", 503, {"Retry-After": "1"})(scope, receive, guarded)
        else:
            self._running += 1
            try:
                await self._inner(scope, receive, guarded)
            finally:
                self._running -= 1

    def _problem(self, method: str, headers: Headers) -> str:
        host = headers.get("host", "")
        if not self._is_own(_name(host)):
            return "this name is not the console's; see --host-name"
        if method in ("GET", "HEAD"):
            return ""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "a form of another site"
        origin = headers.get("origin")
        return "a form of another site" if origin is not None and _place(origin) != host else ""

    def _is_own(self, name: str) -> bool:
        return name in self._hosts or _is_address(name)

    def _guarded(self, send: Send, path: str) -> Send:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                is_kept = path.startswith(PREFIX) and message["status"] == HTTPStatus.OK
                headers["Cache-Control"] = KEPT if is_kept else "no-store"
                if self._has_tls:
                    headers["Strict-Transport-Security"] = "max-age=31536000"
            await send(message)

        return guarded


def _name(host: str) -> str:
    """Without the port; empty for what is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
