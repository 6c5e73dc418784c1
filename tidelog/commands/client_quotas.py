"""`tidelog quotas list | describe | alter | delete`: what users, client ids and addresses may use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated

import typer

from kraft.image.client_quotas import CLIENT_ID, IP, QUOTAS_OF_ADDRESSES, QUOTAS_OF_CLIENTS, TENANT, USER
from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.client_quota_admin import Names, alter_quotas, described_quotas, entity_text, plain
from tidelog.admin.replica_moves import Refused
from tidelog.admin.tenant_admin import TenantAdmin
from tidelog.output import EXIT_USAGE, fail, show, show_one

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

UNITS: Mapping[str, str] = {
    "producer_byte_rate": "bytes/s at each broker",
    "consumer_byte_rate": "bytes/s at each broker",
    "request_percentage": "% of each broker's event loop",
    "controller_mutation_rate": "partitions/s in the cluster",
    "connection_creation_rate": "connections/s at each broker",
}
DIGITS_MAX = 19
_WHOLE, _NUMBER = re.compile(rf"[0-9]{{1,{DIGITS_MAX}}}"), re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")

Quotas = Annotated[list[str], typer.Argument(help="Like producer_byte_rate=1000000, per second.", metavar="NAME=VALUE")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check whether the cluster would do it.")]


@dataclass(frozen=True, slots=True)
class EntityOptions:
    """Whose quotas: a user's, a client id's, those of both together, or an address's."""

    user: Annotated[str | None, typer.Option("--user", help="A user, without User:.", metavar="NAME")] = None
    user_default: Annotated[bool, typer.Option("--user-default", help="Any user.")] = False
    client_id: Annotated[str | None, typer.Option("--client-id", help="A client id.", metavar="ID")] = None
    client_id_default: Annotated[bool, typer.Option("--client-id-default", help="Any client id.")] = False
    ip: Annotated[str | None, typer.Option("--ip", help="An address of clients.", metavar="ADDRESS")] = None
    ip_default: Annotated[bool, typer.Option("--ip-default", help="Any address.")] = False
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Quotas that this tenant sets for its own clients.", metavar="TENANT"),
    ] = None

    def names(self) -> dict[str, str | None]:
        """By type, without the tenant; None is the default's. Ends the command if they make no entity."""
        given = (
            (USER, self.user, self.user_default),
            (CLIENT_ID, self.client_id, self.client_id_default),
            (IP, self.ip, self.ip_default),
        )
        found: dict[str, str | None] = {}
        for kind, name, is_default in given:
            if name is not None and is_default:
                fail(f"--{kind} or --{kind}-default, not both", EXIT_USAGE)
            if name == "":
                fail(f"--{kind}: it must not be empty", EXIT_USAGE)
            if name is not None or is_default:
                found[kind] = name
        if IP in found and len(found) > 1:
            fail("--ip cannot go with --user and --client-id", EXIT_USAGE)
        if IP in found and self.tenant is not None:
            fail("--ip cannot go with --tenant: quotas of addresses are the operators'", EXIT_USAGE)
        _check_address(self.ip)
        return found

    def entity(self) -> dict[str, str | None]:
        """As `names`, at least one."""
        found = self.names()
        if not found:
            fail("say whose quotas: --user, --client-id, --ip, or --user-default, --client-id-default, --ip-default",
                 EXIT_USAGE)  # fmt: skip
        return found


def list_quotas(whose: EntityOptions, options: CommandOptions) -> None:
    """Every entity that has quotas, or those with the given names."""
    names = whose.names()
    with _asked(options, whose, names) as (client, entity):
        found = described_quotas(client, entity, exactly=False)
    rows = [one.row() for one in found]
    if options.as_json:
        print(json.dumps(rows))
        return
    shown = [{"entity": entity_text(one.names), "quotas": row["quotas"]} for one, row in zip(found, rows, strict=True)]
    show(shown, as_json=False, columns=["entity", "quotas"], empty="no quotas")


def describe(whose: EntityOptions, options: CommandOptions) -> None:
    """The quotas of one entity."""
    names = whose.entity()
    with _asked(options, whose, names) as (client, entity):
        values = _values(client, entity)
    quotas = {name: plain(value) for name, value in values.items()}
    if options.as_json:
        print(json.dumps({"entity": entity, "quotas": quotas}))
    else:
        rows = [{"quota": name, "value": value, "unit": UNITS.get(name, "")} for name, value in quotas.items()]
        show(rows, as_json=False, columns=["quota", "value", "unit"])


def alter(quotas: Quotas, whose: EntityOptions, dry_run: DryRun = False, *, options: CommandOptions) -> None:
    """Set quotas of one entity; its other quotas stay."""
    names = whose.entity()
    wanted = parse_quotas(quotas, names)
    with _asked(options, whose, names) as (client, entity):
        alter_quotas(client, entity, wanted, validate_only=dry_run)
    _show_change("set", entity, {name: plain(value) for name, value in wanted.items()}, options, dry_run=dry_run)


def delete(
    whose: EntityOptions,
    quotas: Annotated[
        list[str] | None, typer.Argument(help="Like producer_byte_rate; all of the entity without any.", metavar="NAME")
    ] = None,
    dry_run: DryRun = False,
    *,
    options: CommandOptions,
) -> None:
    """Delete quotas of one entity, or all that it has."""
    names = whose.entity()
    for name in quotas or ():
        _largest(name, names)
    with _asked(options, whose, names) as (client, entity):
        known = _values(client, entity)
        absent = [name for name in quotas or () if name not in known]
        if absent:
            raise Refused(f"it has no quota {absent[0]}; it has {', '.join(known)}")
        gone = list(dict.fromkeys(quotas or known))
        alter_quotas(client, entity, dict.fromkeys(gone), validate_only=dry_run)
    _show_change("deleted", entity, gone, options, dry_run=dry_run)


def parse_quotas(texts: Sequence[str], names: Names) -> dict[str, float]:
    """`NAME=VALUE` by name, checked before a broker is asked, so that the message for an error has the valid range."""
    found: dict[str, float] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            fail(f"{text!r}: it must be NAME=VALUE", EXIT_USAGE)
        most = _largest(name, names)
        if name in found:
            fail(f"{name}: it is given twice", EXIT_USAGE)
        if most is None:
            number = float(value) if _NUMBER.fullmatch(value) else 0.0
            if not 0 < number < math.inf:
                fail(f"{name}={value}: it must be a finite number above 0", EXIT_USAGE)
        else:
            number = int(value) if _WHOLE.fullmatch(value) else 0
            if not 1 <= number <= most:
                fail(f"{name}={value}: it must be a whole number from 1 to {most}", EXIT_USAGE)
        found[name] = float(number)
    return found


def _largest(name: str, names: Names) -> int | None:
    """The largest value of this quota; None where it may be a fraction. Ends the command if the entity has no such."""
    known = QUOTAS_OF_ADDRESSES if IP in names else QUOTAS_OF_CLIENTS
    if name not in known:
        of = "addresses have" if IP in names else "users and client ids have"
        fail(f"{name}: there is no such quota; {of} {', '.join(known)}", EXIT_USAGE)
    return known[name]


def _check_address(text: str | None) -> None:
    try:
        if text is not None:
            ip_address(text)
    except ValueError:
        fail(f"--ip {text!r}: it must be an IPv4 or IPv6 address", EXIT_USAGE)


@contextmanager
def _asked(options: CommandOptions, whose: EntityOptions, names: Names) -> Iterator[tuple[AdminClient, Names]]:
    """A client, and the entity as the cluster knows it. What the cluster refuses ends the command with one line, which
    names the entity."""
    with admin_client(options) as client:
        entity: Names = names
        try:
            if whose.tenant is not None:
                (tenant,) = TenantAdmin(client).tenants([whose.tenant])
                entity = {TENANT: tenant["id"], **names}
            yield client, entity
        except Refused as error:
            fail(f"{entity_text(entity)}: {error}" if entity else str(error))


def _values(client: AdminClient, entity: Names) -> Mapping[str, float]:
    """Raises Refused if the entity has no quotas."""
    found = described_quotas(client, entity, exactly=True)
    if not found:
        raise Refused("it has no quotas")
    return found[0].values


def _show_change(
    act: str, entity: Names, changed: Mapping[str, float] | Sequence[str], options: CommandOptions, *, dry_run: bool
) -> None:
    if options.as_json:
        print(json.dumps({"entity": entity, act: changed, "dry_run": dry_run}))
        return
    shown = {"entity": entity_text(entity), f"would be {act}" if dry_run else act: changed}
    show_one(shown, as_json=False)
