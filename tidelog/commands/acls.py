"""`tidelog acls create | list | delete`: who may do what, by Apache Kafka's rules and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kraft.image.acl_filter import ANY, MATCH
from kraft.image.acls import CLUSTER_RESOURCE
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource
from tidelog.admin.admin_client import CommandOptions, admin_client, error_text
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, fail, show

app = CommandGroup("Access control lists: create, list, delete.")

COLUMNS = ["permission", "principal", "host", "operation", "resource", "name", "pattern"]
ANY_PATTERN, MATCH_PATTERN = "any", "match"

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

    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        others = {ANY_PATTERN: ANY, MATCH_PATTERN: MATCH}
        return {
            "resource_type_filter": _number(AclResource, self.resource, "--resource"),
            "resource_name_filter": self.name,
            "pattern_type_filter": others.get(self.pattern or "") or _number(AclPattern, self.pattern, "--pattern"),
            "principal_filter": self.principal,
            "host_filter": self.host,
            "operation": _number(AclOperation, self.operation, "--operation"),
            "permission_type": _number(AclPermission, self.permission, "--permission"),
        }


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
    from wire.messages import CreateAclsRequest  # noqa: PLC0415

    kind = _number(AclResource, resource, "--resource")
    if name is None and kind == AclResource.CLUSTER:
        name = CLUSTER_RESOURCE
    if name is None:
        fail("--name: it must be given for this resource", EXIT_USAGE)
    creation = CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=_number(AclPattern, pattern, "--pattern"),
        principal=principal,
        host=host,
        operation=_number(AclOperation, operation, "--operation"),
        permission_type=_number(AclPermission, permission, "--permission"),
    )
    with admin_client(options) as client:
        response = client.send(CreateAclsRequest(creations=[creation]))
    _check(response.results[0])
    show([_row(kind, name, creation.resource_pattern_type, creation)], as_json=options.as_json, columns=COLUMNS)


@app.command("list")
def list_acls(wanted: AclFilter, options: CommandOptions) -> None:
    """ACLs that match all options; --pattern match finds every ACL that applies to the named resource."""
    from wire.messages import DescribeAclsRequest  # noqa: PLC0415

    request = DescribeAclsRequest(**wanted.fields())
    with admin_client(options) as client:
        response = client.send(request)
    _check(response)
    rows = [
        _row(found.resource_type, found.resource_name, found.pattern_type, acl)
        for found in response.resources
        for acl in found.acls
    ]
    show(rows, as_json=options.as_json, columns=COLUMNS, empty="no ACLs")


@app.command()
def delete(
    wanted: AclFilter,
    everything: Annotated[bool, typer.Option("--all", help="Delete every ACL of the cluster.")] = False,
    *,
    options: CommandOptions,
) -> None:
    """Delete the ACLs that match all options, and show them."""
    from wire.messages import DeleteAclsRequest  # noqa: PLC0415

    if everything == (wanted != AclFilter()):
        fail("say which ACLs are to go, or --all", EXIT_USAGE)
    filter_ = DeleteAclsRequest.DeleteAclsFilter(**wanted.fields())
    with admin_client(options) as client:
        (result,) = client.send(DeleteAclsRequest(filters=[filter_])).filter_results
        _check(result)
    rows = [_row(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls]
    show(rows, as_json=options.as_json, columns=COLUMNS, empty="no ACLs")


def _number(kind: type[AclResource | AclPattern | AclOperation | AclPermission], text: str | None, option: str) -> int:
    """Kafka's number for a name as Kafka's tools write it; ANY if none is given."""
    if text is None:
        return ANY
    names = {member.name.replace("_", "").lower(): member for member in kind}
    found = names.get(text.replace("_", "").replace("-", "").lower())
    if found is None:
        known = ", ".join(member.name.lower().replace("_", "-") for member in kind)
        fail(f"{option} {text!r}: it must be one of {known}", EXIT_USAGE)
    return int(found)


def _row(resource_type: int, name: str, pattern_type: int, acl: Any) -> dict[str, Any]:
    return {
        "permission": AclPermission(acl.permission_type).name.lower(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name.lower(),
        "resource": AclResource(resource_type).name.lower(),
        "name": name,
        "pattern": AclPattern(pattern_type).name.lower(),
    }


def _check(row: Any) -> None:
    if row.error_code:
        fail(error_text({"error_code": row.error_code, "error_message": row.error_message}) or "refused")
