"""The table of rights that Tidelog's own APIs need: `python -m tests.broker.gate_oracle.own_rights` prints it."""

from __future__ import annotations

from broker.apis import ROWS
from broker.gates.gating import ClusterRight
from kraft.records import AclOperation
from wire.apis import NODES, ApiKey


def own_rights() -> dict[str, str]:
    """By API, of those for operators: which right over the cluster it needs."""
    return {
        row.key.api_name: AclOperation(row.gate.operation).name
        for row in ROWS
        if row.key >= ApiKey.TIER_STATE and row.key.listeners != NODES and isinstance(row.gate, ClusterRight)
    }


def markdown() -> str:
    lines = [("API", "needed"), ("---", "---"), *((api, f"cluster {right}") for api, right in own_rights().items())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(markdown(), end="")
