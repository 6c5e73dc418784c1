"""Tenants, cells, and limits on access control."""

from dataclasses import dataclass

from common.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """Limits on access control, tenants and cells. A tenant or cell may have its own limits instead."""

    # fmt: off
    acls_max: int = setting("tidelog.acls.max", "int", 100_000,
        "ACLs of the whole cluster, those of keys' roles included.", 0, INT_MAX)
    users_max: int = setting("tidelog.users.max", "int", 10_000,
        "Users with SCRAM credentials, API keys not counted.", 0, INT_MAX)
    cell: str = setting("tidelog.cell", "string", "default",
        "The cell that this broker is in; tenants live in one cell each.")
    tenants_max: int = setting("tidelog.tenants.max", "int", 10_000, "Tenants of the whole cluster.", 0, INT_MAX)
    tenant_partitions_max: int = setting("tidelog.tenant.partitions.max", "int", 1_000,
        "Partitions of one tenant that has no limit of its own.", 0, INT_MAX)
    tenant_connections_max: int = setting("tidelog.tenant.connections.max", "int", 1_000,
        "Connections of one tenant that has no limit of its own, at the brokers of its cell together. Each proxy "
        "allows as many.", 0, INT_MAX)
    tenant_connection_rate: int = setting("tidelog.tenant.connection.rate", "int", 100,
        "New connections per second of one tenant that has no limit of its own: each broker takes up to twice an even "
        "part, each proxy all.", 0, INT_MAX)
    tenant_keys_max: int = setting("tidelog.tenant.keys.max", "int", 100,
        "API keys of one tenant that has no limit of its own.", 0, 10_000)
    tenant_acls_max: int = setting("tidelog.tenant.acls.max", "int", 1_000,
        "ACLs of one tenant that has no limit of its own.", 0, 100_000)
    tenant_ingress: int = setting("tidelog.tenant.ingress.bytes.per.second", "long", 0,
        "Bytes per second that clients of one tenant may send, over all brokers, where the tenant has no limit of its "
        "own; 0 is unlimited.", 0, LONG_MAX)
    tenant_egress: int = setting("tidelog.tenant.egress.bytes.per.second", "long", 0,
        "Bytes per second that clients of one tenant may be sent, over all brokers, where the tenant has no limit of "
        "its own; 0 is unlimited.", 0, LONG_MAX)
    tenant_request_percentage: int = setting("tidelog.tenant.request.percentage", "int", 0,
        "Time of brokers' event loops that requests of one tenant may take, over all brokers, where the tenant has no "
        "limit of its own: 100 is one loop; 0 is unlimited.", 0, 1_000_000)
    tenant_mutation_rate: int = setting("tidelog.tenant.partition.mutations.per.second", "int", 0,
        "Partitions per second that clients of one tenant may create and delete, where the tenant has no limit of its "
        "own; 0 is unlimited.", 0, INT_MAX)
    tenant_ingress_reserved: int = setting("tidelog.tenant.ingress.reserved", "long", 0,
        "Bytes per second that one tenant without a limit of its own may always send, also to overloaded brokers.", 0,
        LONG_MAX)
    tenant_egress_reserved: int = setting("tidelog.tenant.egress.reserved", "long", 0,
        "Bytes per second that one tenant without a limit of its own may always be sent, also by overloaded brokers.",
        0, LONG_MAX)
    tenant_transactional_ids_max: int = setting("tidelog.tenant.transactional.ids.max", "int", 10_000,
        "Transactional ids, in each partition of __transaction_state, of one tenant that has no limit of its own. "
        "Together they may take 256 bytes for each of this number.", 0, INT_MAX)
    tenant_transactions_max: int = setting("tidelog.tenant.transactions.max", "int", 1_000,
        "Open transactions, in each partition of __transaction_state, of one tenant that has no limit of its own.", 0,
        INT_MAX)
    tenant_transaction_partitions_max: int = setting("tidelog.tenant.transaction.partitions.max", "int", 10_000,
        "Partitions of one transaction of a tenant that has no limit of its own.", 0, INT_MAX)
    cell_replicas_per_broker_max: int = setting("tidelog.cell.replicas.per.broker.max", "int", 4_000,
        "Replicas that each broker of a cell may have on average, where the cell has no limit of its own.", 1, INT_MAX)
    cell_tenants_max: int = setting("tidelog.cell.tenants.max", "int", 1_000,
        "Tenants of a cell that has no limit of its own.", 0, INT_MAX)
    cell_bandwidth_per_broker: int = setting("tidelog.cell.bandwidth.per.broker", "int", 250_000_000,
        "Bytes per second that each broker of a cell can receive and send together, where the cell has no limit of its "
        "own: the used share is part of the cell's load; 0 leaves it out.", 0, INT_MAX)
    move_partitions_max: int = setting("tidelog.tenant.move.partitions.max", "int", 20,
        "Partitions of one tenant that move to another cell concurrently.", 1, 1_000)
    move_bytes_per_second: int = setting("tidelog.tenant.move.bytes.per.second", "long", 50_000_000,
        "Bytes per second that each broker sends and fetches for tenants that move; 0 is unlimited.", 0, LONG_MAX)
    # fmt: on
