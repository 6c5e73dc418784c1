"""Tenants, keys and cells over an admin client: requests in, plain rows out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tidelog.admin.admin_client import ClusterOptions, admin_client, error_text
from tidelog.admin.replica_moves import Refused
from tidelog.credentials import new_secret, verifiers
from tidelog.output import fail

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import Request

Limits = Mapping[str, int]


class NewTenant(NamedTuple):
    id: str
    cell: str


class NewKey(NamedTuple):
    """`secret` is stored nowhere else."""

    id: str
    secret: str
    tenant_id: str


class _Coded(Protocol):
    """A response with an error code."""

    error_code: int
    error_message: str | None


C = TypeVar("C", bound=_Coded)


class TenantAdmin:
    """Every method raises Refused with the cluster's error."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def _send(self, request: Request[C]) -> C:
        response = self._client.send(request)
        if response.error_code:
            row = {"error_code": response.error_code, "error_message": response.error_message}
            raise Refused(error_text(row) or "refused")
        return response

    # tenants -----------------------------------------------------------------------------------------------

    def create_tenant(
        self, name: str, cell: str | None, limits: Limits, allow: Sequence[str], deny: Sequence[str]
    ) -> NewTenant:
        from wire.messages import CreateTenantRequest as Request  # noqa: PLC0415

        response = self._send(
            Request(
                tenant_name=name,
                cell=cell,
                limits=[Request.NewTenantLimit(name=n, value=v) for n, v in limits.items()],
                allow_networks=list(allow),
                deny_networks=list(deny),
            )
        )
        return NewTenant(response.tenant_id, response.cell)

    def alter_tenant(
        self, tenant: str, limits: Limits, allow: Sequence[str] | None, deny: Sequence[str] | None
    ) -> None:
        from wire.messages import AlterTenantRequest as Request  # noqa: PLC0415

        self._send(
            Request(
                tenant=tenant,
                limits=[Request.AlteredTenantLimit(name=n, value=v) for n, v in limits.items()],
                allow_networks=None if allow is None else list(allow),
                deny_networks=None if deny is None else list(deny),
            )
        )

    def delete_tenant(self, tenant: str) -> None:
        from wire.messages import DeleteTenantRequest  # noqa: PLC0415

        self._send(DeleteTenantRequest(tenant=tenant))

    def move_tenant(self, tenant: str, cell: str | None) -> str:
        """Returns the target cell."""
        from wire.messages import MoveTenantRequest  # noqa: PLC0415

        return str(self._send(MoveTenantRequest(tenant=tenant, cell=cell)).cell)

    def tenants(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The tenants with these names or ids, or all."""
        from wire.messages import DescribeTenantsRequest  # noqa: PLC0415

        response = self._send(DescribeTenantsRequest(tenants=None if names is None else list(names)))
        return [
            {
                "tenant": row.name,
                "id": row.id,
                "cell": row.cell,
                "target_cell": row.target_cell,
                "state": row.state,
                "created_ms": row.created_ms,
                "limits": {limit.name: limit.value for limit in row.limits},
                "allow_networks": list(row.allow_networks),
                "deny_networks": list(row.deny_networks),
                "topics": row.topics,
                "partitions": row.partitions,
                "partitions_to_move": row.partitions_to_move,
                "partitions_moving": row.partitions_moving,
                "keys": row.keys,
                "acls": row.acls,
                "hand_over": row.hand_over or "unknown",
            }
            for row in response.tenants
        ]

    # keys --------------------------------------------------------------------------------------------------

    def create_key(self, tenant: str, roles: Sequence[str], description: str) -> NewKey:
        return self._key(tenant, None, roles, description)

    def renew_key(self, tenant: str, key: str) -> NewKey:
        """Give a key a new secret; the old one is invalid from then on."""
        return self._key(tenant, key, (), "")

    def _key(self, tenant: str, key: str | None, roles: Sequence[str], description: str) -> NewKey:
        from wire.messages import CreateApiKeyRequest as Request  # noqa: PLC0415

        secret = new_secret()
        response = self._send(
            Request(
                tenant=tenant,
                key_id=key,
                description=description,
                roles=list(roles),
                verifiers=[
                    Request.ApiKeyVerifier(
                        mechanism=v.mechanism,
                        iterations=v.iterations,
                        salt=v.salt,
                        stored_key=v.stored_key,
                        server_key=v.server_key,
                    )
                    for v in verifiers(secret)
                ],
            )
        )
        return NewKey(response.key_id, secret, response.tenant_id)

    def delete_key(self, key: str) -> None:
        from wire.messages import DeleteApiKeyRequest  # noqa: PLC0415

        self._send(DeleteApiKeyRequest(key_id=key))

    def keys(self, tenant: str | None = None, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
        from wire.messages import DescribeApiKeysRequest  # noqa: PLC0415

        response = self._send(DescribeApiKeysRequest(tenant=tenant, keys=None if keys is None else list(keys)))
        return [
            {
                "key": row.id,
                "tenant": row.tenant_name,
                "tenant_id": row.tenant,
                "description": row.description,
                "roles": list(row.roles),
                "created_ms": row.created_ms,
                "usable": bool(row.mechanisms),
            }
            for row in response.keys
        ]

    # cells -------------------------------------------------------------------------------------------------

    def alter_cell(self, name: str, limits: Limits, *, is_open: bool | None, must_be_new: bool = False) -> None:
        from wire.messages import AlterCellRequest as Request  # noqa: PLC0415

        self._send(
            Request(
                cell_name=name,
                must_be_new=must_be_new,
                open=-1 if is_open is None else int(is_open),
                limits=[Request.AlteredCellLimit(name=n, value=v) for n, v in limits.items()],
            )
        )

    def cells(self, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        from wire.messages import DescribeCellsRequest  # noqa: PLC0415

        response = self._send(DescribeCellsRequest(cells=None if names is None else list(names)))
        return [
            {
                "cell": row.name,
                "state": "open" if row.is_open else "closed",
                "full": row.full_reason,
                "load": round(row.load, 3),
                "broker_load": round(row.broker_load, 3),
                "replica_share": round(row.replica_share, 3),
                "bandwidth_share": round(row.bandwidth_share, 3),
                "bandwidth_per_broker": row.bandwidth_per_broker,
                "replicas": row.replicas,
                "replicas_max": row.replicas_max,
                "tenants": row.tenant_count,
                "tenants_max": row.tenants_max,
                "tenant_names": list(row.tenants),
                "brokers": [
                    {
                        "broker": broker.broker_id,
                        "rack": broker.rack,
                        "state": "running" if broker.is_active else "fenced",
                        "replicas": broker.replicas,
                    }
                    for broker in row.brokers
                ],
                "ranges": [{"topic": held.topic, "first": held.first, "count": held.count} for held in row.ranges],
            }
            for row in response.cells
        ]


@contextmanager
def tenant_admin(cluster: ClusterOptions) -> Iterator[TenantAdmin]:
    """An error of the cluster ends the command with one line."""
    with admin_client(cluster) as client:
        try:
            yield TenantAdmin(client)
        except Refused as error:
            fail(str(error))
