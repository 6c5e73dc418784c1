"""`tidelog acls create | list | delete`: who may do what, by Apache Kafka's rules and names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from common.settings import SettingError
from tidelog.admin import acl_admin
from tidelog.admin.acl_admin import Acl, AclWanted
from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.replica_moves import Refused
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, fail, show

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

app = CommandGroup("Access control lists: create, list, delete.")

COLUMNS = list(Acl._fields)
OPTION = "--"

T = TypeVar("T")

Name = Annotated[str | None, typer.Option("--name", help="The resource's name, or its prefix; * is every name.")]


@dataclass(frozen=True, slots=True)
class AclFilter:
    """ACLs that match all given fields."""

    resource: Annotated[
        str | None,
        typer.Option("--resource", help="topic, group, cluster, transactional-id, user or delegation-token."),
    ] = None
    name: Name = None
    pattern: Annotated[
        str | None, typer.Option("--pattern", help="literal or prefixed; for filters also match or any.")
    ] = None
    principal: Annotated[str | None, typer.Option("--principal", help="Like User:alice; User:* is everybody.")] = None
    host: Annotated[str | None, typer.Option("--host", help="An address; * is every host.")] = None
    operation: Annotated[str | None, typer.Option("--operation", help="Like read, write, describe or all.")] = None
    permission: Annotated[str | None, typer.Option("--permission", help="allow or deny.")] = None

    def wanted(self) -> AclWanted:
        """Ends the command for words that Kafka does not have."""
        wanted = AclWanted(**asdict(self))
        try:
            wanted.fields(OPTION)
        except SettingError as error:
            fail(str(error), EXIT_USAGE)
        return wanted


@app.command()
def create(
    principal: Annotated[str, typer.Option("--principal", help="Like User:alice; User:* is everybody.")],
    operation: Annotated[str, typer.Option("--operation", help="Like read, write, describe or all.")],
    resource: Annotated[str, typer.Option("--resource", help="topic, group, cluster, transactional-id, …")],
    name: Name = None,
    pattern: Annotated[str, typer.Option("--pattern", help="literal or prefixed.")] = "literal",
    host: Annotated[str, typer.Option("--host", help="An address; * is every host.")] = "*",
    permission: Annotated[str, typer.Option("--permission", help="allow or deny.")] = "allow",
    *,
    options: CommandOptions,
) -> None:
    """Create one ACL; an existing one is left unchanged."""
    given = Acl(permission, principal, host, operation, resource, name or "", pattern)
    try:
        acl = acl_admin.checked(given, OPTION)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)
    _asked(options, lambda client: acl_admin.create(client, acl))
    show([acl._asdict()], as_json=options.as_json, columns=COLUMNS)


@app.command("list")
def list_acls(wanted: AclFilter, options: CommandOptions) -> None:
    """ACLs that match all options; --pattern match finds every ACL that applies to the named resource."""
    given = wanted.wanted()
    rows = _asked(options, lambda client: acl_admin.described(client, given))
    show([one._asdict() for one in rows], as_json=options.as_json, columns=COLUMNS, empty="no ACLs")


@app.command()
def delete(
    wanted: AclFilter,
    everything: Annotated[bool, typer.Option("--all", help="Delete every ACL of the cluster.")] = False,
    *,
    options: CommandOptions,
) -> None:
    """Delete the ACLs that match all options, and show them."""
    if everything == (wanted != AclFilter()):
        fail("say which ACLs are to go, or --all", EXIT_USAGE)
    given = wanted.wanted()
    rows = _asked(options, lambda client: acl_admin.delete(client, [given]))
    show([one._asdict() for one in rows], as_json=options.as_json, columns=COLUMNS, empty="no ACLs")


def _asked(options: CommandOptions, question: Callable[[AdminClient], T]) -> T:
    """Ends the command for what the cluster refuses."""
    with admin_client(options) as client:
        try:
            return question(client)
        except Refused as error:
            fail(str(error))
