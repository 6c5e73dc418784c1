"""What a page module gives to the console: its pages, which show, and its acts, which change something."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from console.web.visit import Form, Visit

Show = Callable[[Visit], Awaitable[Response]]
Do = Callable[[Visit, Form], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """Answers GET at `path`. With a `title` it stands in the menu, under that name."""

    path: str
    show: Show
    title: str = ""


@dataclass(frozen=True, slots=True)
class Act:
    """Answers POST at `path`. `changes` is False for what only looks: a preview, which is allowed with --read-only."""

    path: str
    do: Do
    changes: bool = True
