"""`tidelog acls create | list | delete`: who may do what, by Apache Kafka's rules and names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kraft.image.acl_filter import ANY, MATCH
from kraft.image.acls import CLUSTER_RESOURCE
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource
from tidelog.admin.admin_client import ClusterOptions, admin_client, error_text
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, Json, fail, show

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

app = CommandGroup("Access control lists: create, list, delete.")

COLUMNS = ["permission", "principal", "host", "operation", "resource", "name", "pattern"]
ANY_PATTERN, MATCH_PATTERN = "any", "match"

Resource = Annotated[
    str | None,
    typer.Option("--resource", help="topic, group, cluster, transactional-id, user or delegation-token."),
]
Name = Annotated[str | None, typer.Option("--name", help="The resource's name, or its prefix; * is every name.")]
Pattern = Annotated[str | None, typer.Option("--pattern", help="literal or prefixed; for filters also match or any.")]
Principal = Annotated[str | None, typer.Option("--principal", help="Like User:alice; User:* is everybody.")]
Host = Annotated[str | None, typer.Option("--host", help="An address; * is every host.")]
Operation = Annotated[str | None, typer.Option("--operation", help="Like read, write, describe or all.")]
Permission = Annotated[str | None, typer.Option("--permission", help="allow or deny.")]


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
    cluster: ClusterOptions,
    as_json: Json = False,
) -> None:
    """Make one ACL; one that exists already is left as it is."""
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
    with admin_client(cluster) as client:
        response = client.send(CreateAclsRequest(creations=[creation]))
    _check(response.results[0])
    show(
        [_row(kind, name, creation.resource_pattern_type, creation)],
        as_json=as_json,
        columns=COLUMNS,
    )


@app.command("list")
def list_acls(
    resource: Resource = None,
    name: Name = None,
    pattern: Pattern = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operation = None,
    permission: Permission = None,
    *,
    cluster: ClusterOptions,
    as_json: Json = False,
) -> None:
    """ACLs that match all that is given; --pattern match finds whatever speaks of the named resource."""
    from wire.messages import DescribeAclsRequest  # noqa: PLC0415

    request = DescribeAclsRequest(**_filter(resource, name, pattern, principal, host, operation, permission))
    with admin_client(cluster) as client:
        response = client.send(request)
    _check(response)
    rows = [
        _row(found.resource_type, found.resource_name, found.pattern_type, acl)
        for found in response.resources
        for acl in found.acls
    ]
    show(rows, as_json=as_json, columns=COLUMNS, empty="no ACLs")


@app.command()
def delete(
    resource: Resource = None,
    name: Name = None,
    pattern: Pattern = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operation = None,
    permission: Permission = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete every ACL of the cluster.")] = False,
    *,
    cluster: ClusterOptions,
    as_json: Json = False,
) -> None:
    """Delete the ACLs that match all that is given, and show them."""
    from wire.messages import DeleteAclsRequest  # noqa: PLC0415

    given = (resource, name, pattern, principal, host, operation, permission)
    if everything == any(value is not None for value in given):
        fail("say which ACLs are to go, or --all", EXIT_USAGE)
    wanted = DeleteAclsRequest.DeleteAclsFilter(**_filter(*given))
    with admin_client(cluster) as client:
        result = _delete(client, wanted)
    rows = [_row(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls]
    show(rows, as_json=as_json, columns=COLUMNS, empty="no ACLs")


def _delete(client: AdminClient, wanted: Any) -> Any:
    from wire.messages import DeleteAclsRequest  # noqa: PLC0415

    (result,) = client.send(DeleteAclsRequest(filters=[wanted])).filter_results
    _check(result)
    return result


def _filter(
    resource: str | None,
    name: str | None,
    pattern: str | None,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
) -> dict[str, Any]:
    patterns = {None: ANY, ANY_PATTERN: ANY, MATCH_PATTERN: MATCH}
    return {
        "resource_type_filter": ANY if resource is None else _number(AclResource, resource, "--resource"),
        "resource_name_filter": name,
        "pattern_type_filter": patterns[pattern]
        if pattern in patterns
        else _number(AclPattern, str(pattern), "--pattern"),
        "principal_filter": principal,
        "host_filter": host,
        "operation": ANY if operation is None else _number(AclOperation, operation, "--operation"),
        "permission_type": ANY if permission is None else _number(AclPermission, permission, "--permission"),
    }


def _number(kind: type[AclResource | AclPattern | AclOperation | AclPermission], text: str, option: str) -> int:
    """Kafka's number for a name, written as Kafka's tools do."""
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
