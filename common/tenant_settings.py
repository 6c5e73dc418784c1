"""Settings of tenants, cells and access control; a part of the catalogue of `common.broker_settings`.

Defaults of a tenant's and a cell's own limits stand here as `tidelog.tenant.<limit>` and `tidelog.cell.<limit>`.
"""

from common.settings import INT_MAX, LONG_MAX, Setting


def _s(name: str, type_name: str, default: object, doc: str, low: float | None = None, high: float | None = None,
       update: str = "read-only", choices: tuple[str, ...] = ()) -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, choices, update)


ACCESS_SETTINGS = [
    _s("tidelog.acls.max", "int", 100_000, "ACLs of the whole cluster, those of keys' roles included.", 0, INT_MAX),
    _s("tidelog.users.max", "int", 10_000, "Users with SCRAM credentials, API keys not counted.", 0, INT_MAX),
]  # fmt: skip

TENANT_SETTINGS = [
    _s("tidelog.cell", "string", "default", "The cell that this broker is in; tenants live in one cell each."),
    _s("tidelog.tenants.max", "int", 10_000, "Tenants of the whole cluster.", 0, INT_MAX),
    _s("tidelog.tenant.partitions.max", "int", 1_000, "Partitions of one tenant that has no limit of its own.", 0,
       INT_MAX),
    _s("tidelog.tenant.connections.max", "int", 1_000, "Connections of one tenant that has no limit of its own, for "
       "each broker and each proxy.", 0, INT_MAX),
    _s("tidelog.tenant.connection.rate", "int", 100, "New connections a second of one tenant that has no limit of its "
       "own, for each broker and each proxy.", 0, INT_MAX),
    _s("tidelog.tenant.keys.max", "int", 100, "API keys of one tenant that has no limit of its own.", 0, 10_000),
    _s("tidelog.tenant.acls.max", "int", 1_000, "ACLs of one tenant that has no limit of its own.", 0, 100_000),
    _s("tidelog.cell.replicas.per.broker.max", "int", 4_000, "Replicas that each broker of a cell may have on average, "
       "where the cell has no limit of its own.", 1, INT_MAX),
    _s("tidelog.cell.tenants.max", "int", 1_000, "Tenants of a cell that has no limit of its own.", 0, INT_MAX),
    _s("tidelog.cell.bandwidth.per.broker", "int", 250_000_000, "Bytes a second that each broker of a cell can receive "
       "and send together, where the cell has no limit of its own: what is used of it is part of the cell's load; 0 "
       "leaves it out.", 0, INT_MAX),
    _s("tidelog.tenant.move.partitions.max", "int", 20, "Partitions of one tenant that move to another cell at the "
       "same time.", 1, 1_000),
    _s("tidelog.tenant.move.bytes.per.second", "long", 50_000_000, "Bytes a second that each broker sends and fetches "
       "for tenants that move; 0 is without bound.", 0, LONG_MAX),
]  # fmt: skip
