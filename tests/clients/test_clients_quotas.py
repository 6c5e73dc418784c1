"""`tidelog quotas list | describe | alter | delete` on a running cluster."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from bench.embedded import EmbeddedCluster
from tests.prepared_command import prepared

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

RATE = 1_000_000_000_000  # holds no client of other tests


def asked(cluster: EmbeddedCluster, *words: str) -> Any:
    return json.loads(cluster.command_of("quotas", *words, "--json"))


def refusal(cluster: EmbeddedCluster, *words: str) -> str:
    done = prepared(["quotas", *words, "--data", str(cluster.data)])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    return done.stderr


ENTITIES: list[tuple[list[str], dict[str, str | None]]] = [
    (["--user", "USER"], {"user": "USER"}),
    (["--user", "USER", "--client-id", "c"], {"user": "USER", "client-id": "c"}),
    (["--user", "USER", "--client-id-default"], {"user": "USER", "client-id": None}),
    (["--user-default"], {"user": None}),
    (["--user-default", "--client-id", "USER"], {"user": None, "client-id": "USER"}),
    (["--user-default", "--client-id-default"], {"user": None, "client-id": None}),
    (["--client-id", "USER"], {"client-id": "USER"}),
    (["--client-id-default"], {"client-id": None}),
    (["--ip", "::ffff:10.9.8.7"], {"ip": "10.9.8.7"}),
    (["--ip-default"], {"ip": None}),
]


@pytest.mark.parametrize(("kinds", "looked_at"), [(ENTITIES[:5], 2), (ENTITIES[5:], 3)])
def test_quotas_of_every_kind_of_entity_are_set_shown_and_deleted(
    cluster: EmbeddedCluster, kinds: list[tuple[list[str], dict[str, str | None]]], looked_at: int
) -> None:
    user = f"u-{uuid.uuid4().hex[:8]}"
    entities = [
        ([word.replace("USER", user) for word in words], {k: v and v.replace("USER", user) for k, v in entity.items()})
        for words, entity in kinds
    ]
    bounds = {}
    for number, (words, entity) in enumerate(entities):
        name = "connection_creation_rate" if "ip" in entity else "producer_byte_rate"
        bounds[str(entity)] = {name: (1_000_000 if "ip" in entity else RATE) + number}
        values = [f"{name}={value}" for name, value in bounds[str(entity)].items()]
        asked(cluster, "alter", *words, *values)
    try:
        listed = {str(row["entity"]): row["quotas"] for row in asked(cluster, "list")}
        assert listed == bounds
        own = {str(row["entity"]) for row in asked(cluster, "list", "--user", user)}
        assert own == {str(entity) for _, entity in entities if entity.get("user") == user}
        words, entity = entities[looked_at]
        assert asked(cluster, "describe", *words)["quotas"] == bounds[str(entity)], "of that entity alone"
    finally:
        for words, _ in entities:
            asked(cluster, "delete", *words)
    assert asked(cluster, "list") == []


@pytest.fixture
def alice() -> list[str]:
    return ["--user", f"alice-{uuid.uuid4().hex[:8]}"]


def test_quotas_are_changed_and_deleted_one_by_one(cluster: EmbeddedCluster, alice: list[str]) -> None:
    asked(cluster, "alter", *alice, f"producer_byte_rate={RATE}", "request_percentage=12.5")
    asked(cluster, "alter", *alice, f"producer_byte_rate={RATE + 1}")
    quotas = {"producer_byte_rate": RATE + 1, "request_percentage": 12.5}
    assert asked(cluster, "describe", *alice)["quotas"] == quotas
    table = cluster.command_of("quotas", "describe", *alice)
    assert "12.5" in table and str(RATE + 1) in table and "bytes/s at each broker" in table
    assert f"user={alice[1]}" in cluster.command_of("quotas", "list", *alice)
    assert "it has no quota consumer_byte_rate; it has producer_byte_rate, request_percentage" in refusal(
        cluster, "delete", *alice, "producer_byte_rate", "consumer_byte_rate"
    )
    assert asked(cluster, "delete", *alice, "request_percentage")["deleted"] == ["request_percentage"]
    assert asked(cluster, "delete", *alice)["deleted"] == ["producer_byte_rate"]
    assert f"user={alice[1]}: it has no quotas" in refusal(cluster, "describe", *alice)
    assert "it has no quotas" in refusal(cluster, "delete", *alice)


def test_a_dry_run_changes_nothing(cluster: EmbeddedCluster, alice: list[str]) -> None:
    assert asked(cluster, "alter", *alice, "producer_byte_rate=5", "--dry-run")["dry_run"] is True
    assert asked(cluster, "list", *alice) == []
    asked(cluster, "alter", *alice, f"producer_byte_rate={RATE}")
    assert "would be deleted  producer_byte_rate" in cluster.command_of("quotas", "delete", *alice, "--dry-run")
    assert len(asked(cluster, "list", *alice)) == 1
    asked(cluster, "delete", *alice)


def test_operators_name_a_tenant_and_the_clusters_refusal_names_the_entity(cluster: EmbeddedCluster) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    made = json.loads(cluster.command_of("tenants", "create", name, "--json"))
    key = ["--user", "KEY", "--tenant"]
    asked(cluster, "alter", *key, name, "consumer_byte_rate=9")
    row = {"entity": {"tenant": made["id"], "user": "KEY"}, "quotas": {"consumer_byte_rate": 9}}
    assert asked(cluster, "list", "--tenant", made["id"]) == [row]
    assert asked(cluster, "list", "--user", "KEY") == [], "operators' own quotas are others"
    assert f"user={'k' * 1001}: INVALID_REQUEST" in refusal(
        cluster, "alter", "--user", "k" * 1_001, "consumer_byte_rate=9"
    )
    assert "There is no tenant none" in refusal(cluster, "list", "--tenant", "none")
    assert asked(cluster, "delete", *key, name)["deleted"] == ["consumer_byte_rate"]
    assert asked(cluster, "list", "--tenant", name) == []
    cluster.command_of("tenants", "delete", name)
