"""ACLs and SCRAM users by stock admin clients, tenants and keys by the command, on a running cluster."""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient, ResourcePattern
from kafka.admin import ACLResourcePatternType as PythonPattern
from kafka.admin import ResourceType as PythonResource

from bench.embedded import EmbeddedCluster
from tests.prepared_command import prepared

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]

WAIT_S = 30


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture
def python_admin(cluster: EmbeddedCluster) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    yield client
    client.close()


def unique(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def of_user(
    user: str, pattern: ResourcePatternType, name: str | None = None, resource: ResourceType = ResourceType.ANY
) -> AclBindingFilter:
    anything: Any = None  # the client's own types do not know that a filter may leave a field open
    of: Any = name
    return AclBindingFilter(resource, of, pattern, user, anything, AclOperation.ANY, AclPermissionType.ANY)


def described(admin: AdminClient, user: str) -> Any:
    futures: Any = admin.describe_user_scram_credentials([user])
    return futures[user].result(WAIT_S)


def test_confluent_creates_finds_and_deletes_acls(admin: AdminClient) -> None:
    user, name = unique("User:c"), unique("t")
    bindings = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, user, "*", AclOperation.READ, AclPermissionType.ALLOW
        ),
        AclBinding(
            ResourceType.GROUP, name[:3], ResourcePatternType.PREFIXED, user, "10.0.0.1", AclOperation.ALL,
            AclPermissionType.DENY,
        ),
    ]  # fmt: skip
    for future in admin.create_acls(bindings).values():
        future.result(WAIT_S)

    def found(
        pattern: ResourcePatternType, of: str | None, resource: ResourceType = ResourceType.ANY
    ) -> set[AclBinding]:
        return set(admin.describe_acls(of_user(user, pattern, of, resource)).result(WAIT_S))

    assert found(ResourcePatternType.ANY, None) == set(bindings)
    assert found(ResourcePatternType.MATCH, name) == set(bindings)
    assert found(ResourcePatternType.LITERAL, name) == {bindings[0]}
    assert found(ResourcePatternType.MATCH, name, ResourceType.TOPIC) == {bindings[0]}
    (future,) = admin.delete_acls([of_user(user, ResourcePatternType.ANY)]).values()
    assert set(future.result(WAIT_S)) == set(bindings)
    assert found(ResourcePatternType.ANY, None) == set()


def test_kafka_python_creates_finds_and_deletes_acls(python_admin: KafkaAdminClient) -> None:
    user, name = unique("User:p"), unique("t")
    acl = ACL(
        principal=user,
        host="*",
        operation=ACLOperation.WRITE,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(PythonResource.TOPIC, name, PythonPattern.LITERAL),
    )
    created = python_admin.create_acls([acl])
    assert not created["failed"]
    wanted = ACLFilter(
        principal=user,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=acl.resource_pattern,
    )
    found, _error = python_admin.describe_acls(wanted)
    assert found == [acl]
    (deleted,) = python_admin.delete_acls([wanted])
    assert deleted[1] == [acl]
    assert python_admin.describe_acls(wanted)[0] == []


def test_confluent_alters_and_describes_scram_users(admin: AdminClient) -> None:
    user, absent = unique("alice"), unique("nobody")
    sha256 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    sha512 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    for info in (sha256, sha512):
        (future,) = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, info, b"secret", b"some-salt")]
        ).values()
        future.result(WAIT_S)
    infos = described(admin, user).scram_credential_infos
    assert {(info.mechanism, info.iterations) for info in infos} == {
        (ScramMechanism.SCRAM_SHA_256, 4096),
        (ScramMechanism.SCRAM_SHA_512, 8192),
    }
    everybody: Any = admin.describe_user_scram_credentials()
    assert user in everybody.result(WAIT_S)
    with pytest.raises(KafkaException) as caught:
        described(admin, absent)
    assert caught.value.args[0].name() == "RESOURCE_NOT_FOUND"
    few = UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 100), b"x", b"salt")
    with pytest.raises(KafkaException) as caught:
        admin.alter_user_scram_credentials([few])[user].result(WAIT_S)
    assert caught.value.args[0].name() == "UNACCEPTABLE_CREDENTIAL"
    deletions: list[Any] = [UserScramCredentialDeletion(user, info.mechanism) for info in (sha256, sha512)]
    for deletion in deletions:
        admin.alter_user_scram_credentials([deletion])[user].result(WAIT_S)
    with pytest.raises(KafkaException) as caught:
        admin.alter_user_scram_credentials(deletions[:1])[user].result(WAIT_S)
    assert caught.value.args[0].name() == "RESOURCE_NOT_FOUND"


def fails(cluster: EmbeddedCluster, status: int, *words: str) -> str:
    """What `tidelog …` says when it ends so."""
    done = prepared([*words, "--data", str(cluster.data)])
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1 or status == 2
    return done.stderr


def test_the_commands_life_of_a_tenant(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    name = unique("demo")
    made = json.loads(cluster.command_of("tenants", "create", name, "--limit", "partitions.max=4", "--json"))
    assert made["cell"] == "default"
    assert "exists" in fails(cluster, 1, "tenants", "create", name)
    fails(cluster, 2, "tenants", "create", name, "--limit", "partitions.max")
    out = tmp_path / "key"
    shown = json.loads(cluster.command_of("keys", "create", name, "--role", "read:fl", "--json"))
    kept = json.loads(cluster.command_of("keys", "create", name, "--out", str(out), "--json"))
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert kept["key"] in out.read_text()
    assert "secret" not in kept
    fails(cluster, 2, "keys", "create", name, "--out", str(out))
    assert "without a colon" in fails(cluster, 2, "keys", "create", name, "--role", "read:")
    listed = cluster.command_of("keys", "list", name, "--json")
    assert shown["secret"] not in listed
    assert {row["key"]: row["usable"] for row in json.loads(listed)} == {shown["key"]: True, kept["key"]: True}
    acls = json.loads(cluster.command_of("acls", "list", "--principal", f"User:{made['id']}_{shown['key']}", "--json"))
    assert {(row["resource"], row["name"], row["operation"]) for row in acls} == {
        ("topic", f"{made['id']}_fl", "read"),
        ("group", f"{made['id']}_fl", "read"),
    }
    topic = f"{made['id']}_t"
    cluster.command_of("topics", "create", topic, "--partitions", "3")
    assert "at most 4" in fails(cluster, 1, "topics", "create", f"{made['id']}_u", "--partitions", "2")
    _use(cluster, topic, f"{made['id']}_g")
    groups = [row["group"] for row in json.loads(cluster.command_of("groups", "list", "--json"))]
    assert f"{made['id']}_g" in groups
    cluster.command_of("tenants", "delete", name)
    assert all(row["tenant"] != name for row in json.loads(cluster.command_of("tenants", "list", "--json")))
    topics = [row["topic"] for row in json.loads(cluster.command_of("topics", "list", "--json"))]
    assert topic not in topics
    groups = [row["group"] for row in json.loads(cluster.command_of("groups", "list", "--json"))]
    assert f"{made['id']}_g" not in groups
    assert made["id"] not in cluster.command_of("acls", "list")
    assert "no tenant" in fails(cluster, 1, "tenants", "describe", name)
    text = "".join(path.read_text(errors="replace") for path in (cluster.data / "logs").glob("*.log"))
    assert shown["secret"] not in text


def _use(cluster: EmbeddedCluster, topic: str, group: str) -> None:
    """Write, and commit in a group that stays when its member has gone."""
    servers = cluster.bootstrap.split(",")
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    producer.send(topic, b"v").get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    next(consumer)
    consumer.commit()
    consumer.close()


def test_the_commands_of_users_and_cells(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    user = unique("bob")
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    made = json.loads(cluster.command_of("users", "set", user, "--password-file", str(password), "--json"))
    assert made == {"user": user, "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"]}
    rows = {row["user"]: row["mechanisms"] for row in json.loads(cluster.command_of("users", "list", "--json"))}
    assert rows[user] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
    cluster.command_of("users", "delete", user)
    assert "there is no user" in fails(cluster, 1, "users", "delete", user)
    cell = unique("cell")
    closed = json.loads(cluster.command_of("cells", "create", cell, "--closed", "--json"))
    assert (closed["state"], closed["brokers"]) == ("closed", [])
    assert "exists" in fails(cluster, 1, "cells", "create", cell)
    assert "closed" in fails(cluster, 1, "tenants", "create", unique("x"), "--cell", cell)
    listed = {row["cell"]: row for row in json.loads(cluster.command_of("cells", "list", "--json"))}
    assert [broker["broker"] for broker in listed["default"]["brokers"]] == [0, 1, 2]


def test_the_commands_of_load_and_usage(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    rows = json.loads(cluster.command_of("load", "--json"))
    assert [row["broker"] for row in rows] == [0, 1, 2]
    tenants = {row["id"]: row for row in json.loads(cluster.command_of("load", "--tenants", "--json"))}
    assert not tenants or tenants[""]["tenant"] == "-"
    assert "one of" in fails(cluster, 2, "load", "--tenants", "--partitions")
    out = tmp_path / "usage.jsonl"
    cluster.command_of("usage", "record", "--out", str(out), "--every", "1", "--looks", "7")
    reports = [json.loads(line) for line in out.read_text().splitlines()]
    assert {report["broker"] for report in reports} == {0, 1, 2}
    assert len({(report["broker"], report["round"]) for report in reports}) == len(reports), "each round once"
    assert all(report["requests"] >= 0 and report["disk_size_bytes"] > 0 for report in reports)
