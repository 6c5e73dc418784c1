"""Names of topics and groups for a shell that completes a command line: what the cluster answers, or nothing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tidelog.admin.admin_client import ClientOptions, admin_client
from tidelog.cluster.embedded_place import DEFAULT_DATA

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

_PLAIN = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._:@%+=,/-]*")
"""A name that means itself on the command line of every shell. Clients choose names of groups, and shells of their
own accord quote nothing that a completion says: `$(…)` would run."""


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    return _asked(context, incomplete, lambda client: client.list_topics())


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    return _asked(context, incomplete, lambda client: [row["group_id"] for row in client.list_groups()])


def _asked(context: typer.Context, incomplete: str, ask: Callable[[AdminClient], Any]) -> list[str]:
    """Plain names with that beginning; none where the cluster cannot be asked, and never a word on standard error."""
    given = context.params
    options = ClientOptions(
        given.get("bootstrap"),
        Path(given["command_config"]) if given.get("command_config") else None,
        Path(given.get("data") or DEFAULT_DATA),
        given.get("tenant"),
    )
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            with admin_client(options.cluster()) as client:
                return plain_names(ask(client), incomplete)
        except (typer.Exit, OSError):
            return []


def plain_names(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name))
