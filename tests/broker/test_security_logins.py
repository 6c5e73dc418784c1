"""Logins over a socket: tokens without a header, as clients before SaslAuthenticate sent them, and users who are
deleted while they are connected."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from broker.security.config import SecurityConfig
from common.errors import ErrorCode
from tests.broker.gate_oracle.node import PASSWORD, GatedNode, authenticate
from tests.broker.gate_oracle.questions import metadata
from tests.broker.gate_oracle.things import Ids
from tests.broker.tenant_lab import Wire
from wire.codec import encode_request
from wire.messages import AlterUserScramCredentialsRequest, SaslHandshakeRequest

SESSION_MS = 1_500
METADATA = metadata(Ids({}), 9, topics=[])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatedNode]:
    security = SecurityConfig(max_reauth_ms=SESSION_MS, reauthentication_s=0.0)
    async with GatedNode(tmp_path_factory.mktemp("logins"), security) as made:
        await made.make_users("ada", "ben")
        yield made


def framed(token: bytes) -> bytes:
    return len(token).to_bytes(4, "big") + token


async def beginning(node: GatedNode, mechanism: str) -> Wire:
    wire = await node.connect(sasl=True)
    assert not (await wire.call(SaslHandshakeRequest(mechanism=mechanism), 0)).error_code
    return wire


async def scram(wire: Wire, user: str, password: str) -> bytes | None:
    """The server's last word, by RFC 5802."""
    first = f"n={user},r=nonce"
    challenge = await wire.send(framed(b"n,," + first.encode()))
    assert challenge is not None
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    without = f"c=biws,r={fields['r']}"
    said = f"{first},{challenge.decode()},{without}".encode()
    sign = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, sign, strict=True))
    return await wire.send(framed(f"{without},p={base64.b64encode(proof).decode()}".encode()))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_password_in_a_token_without_a_header(node: GatedNode) -> None:
    wire = await beginning(node, "PLAIN")
    assert await wire.send(framed(f"\0ada\0{PASSWORD}".encode())) == b""
    assert (await wire.call(METADATA, 9)).brokers


@pytest.mark.asyncio(loop_scope="module")
async def test_scram_in_tokens_without_a_header(node: GatedNode) -> None:
    wire = await beginning(node, "SCRAM-SHA-256")
    last = await scram(wire, "ada", PASSWORD)
    assert last is not None and last.startswith(b"v=")
    assert (await wire.call(METADATA, 9)).brokers


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("user", ["ada", "nobody"])
async def test_a_wrong_token_without_a_header_closes_without_a_word(node: GatedNode, user: str) -> None:
    assert await (await beginning(node, "PLAIN")).send(framed(f"\0{user}\0wrong".encode())) is None
    assert await scram(await beginning(node, "SCRAM-SHA-256"), user, "wrong") is None


@pytest.mark.asyncio(loop_scope="module")
async def test_no_request_is_served_where_a_token_is_expected(node: GatedNode) -> None:
    wire = await beginning(node, "PLAIN")
    assert await wire.send(encode_request(METADATA, 9, 1, "lab")) is None


async def delete(node: GatedNode, user: str) -> None:
    deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=user, mechanism=1)
    gone = await node.anonymous.call(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]), 0)
    assert [row.error_code for row in gone.results] == [0]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_user_who_is_deleted_is_cut_at_re_authentication(node: GatedNode) -> None:
    gone, stays = await node.connect(sasl=True), await node.connect(sasl=True)
    for wire, user in ((gone, "ben"), (stays, "ada")):
        assert (await authenticate(wire, user)).session_lifetime_ms == SESSION_MS
    await delete(node, "ben")
    refused = await authenticate(gone, "ben")
    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert await gone.exchange(METADATA, 9) is None, "the connection is cut"
    assert (await authenticate(stays, "ada")).session_lifetime_ms == SESSION_MS
    assert (await stays.call(METADATA, 9)).brokers
    await node.make_users("ben")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_user_who_is_deleted_is_served_no_longer_than_the_session(node: GatedNode) -> None:
    wire = await node.connect(sasl=True)
    assert not (await authenticate(wire, "ben")).error_code
    await delete(node, "ben")
    while await wire.exchange(METADATA, 9) is not None:  # until the session is over
        pass
    again = await node.connect(sasl=True)
    assert (await authenticate(again, "ben")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
