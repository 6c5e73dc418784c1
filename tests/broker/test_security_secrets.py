"""What a controller's snapshot and all the other files of a node hold of users and API keys: verifiers,
which prove nothing, and neither passwords nor what takes the place of one."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from pathlib import Path

from broker.security.authorizer import AuthorizerConfig
from broker.security.config import SecurityConfig
from kraft.quorum.node_config import NodeConfig
from kraft.quorum.quorum import QuorumConfig
from kraft.quorum.snapshot_file import FILE_NAME
from tests.broker.gate_oracle.node import ITERATIONS, PASSWORD, SALT, GatedNode, authenticate
from tests.broker.replication_lab import SECRET
from wire.messages import CreateApiKeyRequest, CreateTenantRequest

USER, KEY_SECRET = "ada-of-the-snapshot", b"secret-of-a-key-in-a-snapshot"


def verifier(secret: bytes, name: str = "sha256") -> tuple[bytes, bytes, bytes, bytes]:
    """Salted password and client key, each as good as the password; stored key and server key, which are kept."""
    salted = hashlib.pbkdf2_hmac(name, secret, SALT, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", name)
    return salted, client_key, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name)


def snapshots(root: Path) -> list[Path]:
    return [path for path in root.rglob(FILE_NAME) if path.is_file()]


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def snapshot(node: GatedNode) -> bytes:
    """What is in one that was begun from now on."""
    quorum = node.controller.quorum
    under_way = quorum.snapshots_written + 1
    async with asyncio.timeout(60):
        while quorum.snapshots_written <= under_way:
            await node.make_users("another")  # whatever moves the log on
    (path,) = snapshots(node.root)
    return path.read_bytes()


async def test_neither_a_snapshot_nor_any_other_file_holds_a_secret(tmp_path: Path) -> None:
    security = SecurityConfig(authorizer=AuthorizerConfig(frozenset({"User:ANONYMOUS"})))
    of_key = [verifier(KEY_SECRET, name) for name in ("sha256", "sha512")]
    secrets = [KEY_SECRET, SECRET, *verifier(PASSWORD.encode())[:2], *(one for proof in of_key for one in proof[:2])]
    often = QuorumConfig(node=NodeConfig(compaction_entries_min=10))
    async with GatedNode(tmp_path, security, quorum=often) as node:
        await node.make_users(USER)
        wire = await node.connect(sasl=True)
        assert not (await authenticate(wire, USER)).error_code
        tenant = await node.anonymous.call(CreateTenantRequest(tenant_name="one", limits=[]), 0)
        assert not tenant.error_code
        proofs = [
            CreateApiKeyRequest.ApiKeyVerifier(
                mechanism=mechanism, iterations=ITERATIONS, salt=SALT, stored_key=stored_key, server_key=server_key
            )
            for mechanism, (_, _, stored_key, server_key) in enumerate(of_key, 1)
        ]
        made = await node.anonymous.call(
            CreateApiKeyRequest(tenant="one", key_id=None, roles=["admin"], verifiers=proofs, timeout_ms=5_000), 0
        )
        assert not made.error_code, made.error_message
        held = await snapshot(node)
        kept = [verifier(PASSWORD.encode())[2], *(one for proof in of_key for one in proof[2:])]
        for known in (USER.encode(), made.key_id.encode(), *kept):
            assert known in held, "the search sees what is there"
        held_by = files(tmp_path)
        assert len(held_by) > 3
        assert [
            (path.name, at) for path, data in held_by.items() for at, one in enumerate(secrets) if one in data
        ] == []
