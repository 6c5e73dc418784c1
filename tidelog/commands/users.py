"""`tidelog users set | list | delete`: operators and services that log in with SCRAM.

A password is never an argument, where every process of the machine could read it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.admin.admin_client import CommandOptions, admin_client, error_text
from tidelog.command_group import CommandGroup
from tidelog.credentials import MECHANISM_NAMES, PASSWORD_ITERATIONS, new_secret, salted, write_private
from tidelog.output import EXIT_USAGE, fail, show, show_one

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

app = CommandGroup("Users with SCRAM passwords: set, list, delete.")

User = Annotated[str, typer.Argument(help="The user's name.", metavar="USER")]
Mechanism = Annotated[
    list[str] | None,
    typer.Option("--mechanism", help="SCRAM-SHA-256 or SCRAM-SHA-512; both when none is given.", metavar="NAME"),
]
NAME_OF = {number: name for name, number in MECHANISM_NAMES.items()}


@app.command("set")
def set_password(
    user: User,
    mechanism: Mechanism = None,
    password_file: Annotated[
        Path | None, typer.Option(help="Holds the password; - is standard input. Else one is made and shown once.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a password that is made into this new file, 0600.")] = None,
    iterations: Annotated[int, typer.Option(min=4_096, max=16_384, help="Of the hash.")] = PASSWORD_ITERATIONS,
    *,
    options: CommandOptions,
) -> None:
    """Create a user, or change its password."""
    if out is not None and (password_file is not None or out.exists() or not out.parent.is_dir()):
        fail(f"--out {out}: it must be a new file in a directory that exists, for a password made here", EXIT_USAGE)
    numbers = _numbers(mechanism)
    password = new_secret() if password_file is None else _read(password_file)
    if out is not None:
        try:
            write_private(out, f"user={user}\npassword={password}\n")
        except OSError as error:
            fail(f"{out}: {error.strerror}")
    with admin_client(options) as client:
        _alter(client, [(user, salted(password, number, iterations)) for number in numbers], [])
    shown: dict[str, Any] = {"user": user, "mechanisms": [NAME_OF[number] for number in numbers]}
    if out is not None:
        shown["file"] = str(out)
    elif password_file is None:
        shown["password"] = password
    show_one(shown, as_json=options.as_json)


@app.command("list")
def list_users(options: CommandOptions) -> None:
    """Users and their mechanisms; never any part of a password. API keys are listed by `tidelog keys list`."""
    with admin_client(options) as client:
        rows = _described(client)
    show(rows, as_json=options.as_json, columns=["user", "mechanisms"], empty="no users")


@app.command()
def delete(user: User, mechanism: Mechanism = None, *, options: CommandOptions) -> None:
    """Delete a user, or one of its mechanisms."""
    with admin_client(options) as client:
        known: dict[str, int] = next((row["mechanisms"] for row in _described(client) if row["user"] == user), {})
        numbers = _numbers(mechanism) if mechanism else [MECHANISM_NAMES[name] for name in known]
        if not numbers:
            fail(f"there is no user {user}")
        _alter(client, [], [(user, number) for number in numbers])
    if options.as_json:
        print(json.dumps([{"user": user, "mechanisms": [NAME_OF[number] for number in numbers]}]))


def _numbers(names: list[str] | None) -> list[int]:
    wanted = list(MECHANISM_NAMES) if not names else [name.upper() for name in names]
    unknown = [name for name in wanted if name not in MECHANISM_NAMES]
    if unknown:
        fail(f"--mechanism {unknown[0]}: it must be one of {', '.join(MECHANISM_NAMES)}", EXIT_USAGE)
    return [MECHANISM_NAMES[name] for name in dict.fromkeys(wanted)]


def _read(path: Path) -> str:
    try:
        text = sys.stdin.readline() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"--password-file {path}: {error.strerror}", EXIT_USAGE)
    password = text.rstrip("\r\n")
    if not password:
        fail(f"--password-file {path}: it holds no password", EXIT_USAGE)
    return password


def _described(client: AdminClient) -> list[dict[str, Any]]:
    from wire.messages import DescribeUserScramCredentialsRequest  # noqa: PLC0415

    response = client.send(DescribeUserScramCredentialsRequest(users=None))
    _check([response])
    return [
        {"user": row.user, "mechanisms": {NAME_OF[info.mechanism]: info.iterations for info in row.credential_infos}}
        for row in response.results
    ]


def _alter(client: AdminClient, upsertions: list[tuple[str, Any]], deletions: list[tuple[str, int]]) -> None:
    from wire.messages import AlterUserScramCredentialsRequest as Request  # noqa: PLC0415

    response = client.send(
        Request(
            deletions=[Request.ScramCredentialDeletion(name=name, mechanism=number) for name, number in deletions],
            upsertions=[
                Request.ScramCredentialUpsertion(
                    name=name,
                    mechanism=given.mechanism,
                    iterations=given.iterations,
                    salt=given.salt,
                    salted_password=given.password,
                )
                for name, given in upsertions
            ],
        )
    )
    _check(response.results)


def _check(rows: Iterable[Any]) -> None:
    for row in rows:
        if row.error_code:
            fail(error_text({"error_code": row.error_code, "error_message": row.error_message}) or "refused")
