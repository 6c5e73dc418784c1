"""AlterUserScramCredentials: Kafka's refusals, all of a user's changes or none, and a verifier that RFC 5802 gives."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from common.errors import ErrorCode
from common.node_settings.tenants import TenantSettings
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.records import ScramMechanism
from tests.kraft.decisions import decide_alter_user_scram_credentials
from tests.kraft.images import POLICY, new_cluster
from wire.messages import AlterUserScramCredentialsRequest

Request = AlterUserScramCredentialsRequest


def upsertion(name: str = "alice", mechanism: int = 1, **changed: Any) -> Any:
    fields: dict[str, Any] = {"iterations": 4096, "salt": b"salt", "salted_password": b"p" * 32}
    return Request.ScramCredentialUpsertion(name=name, mechanism=mechanism, **{**fields, **changed})


def deletion(name: str = "alice", mechanism: int = 1) -> Any:
    return Request.ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(
    image: MetadataImage, *changes: Any, policy: ControllerPolicy = POLICY
) -> tuple[MetadataImage, dict[str, int]]:
    request = Request(
        deletions=[c for c in changes if isinstance(c, Request.ScramCredentialDeletion)],
        upsertions=[c for c in changes if isinstance(c, Request.ScramCredentialUpsertion)],
    )
    decision = decide_alter_user_scram_credentials(image, request, policy)
    return replayed(image, decision.records), {r.user: r.error_code for r in decision.reply.results}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion("bad", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", salted_password=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", salt=b"s" * 1025), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("", ), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 250), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("TKABCDEFGHIJKLMN"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bad", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("bad", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion("bad", 9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion("bad"), ErrorCode.RESOURCE_NOT_FOUND),
        (deletion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)  # fmt: skip
def test_a_bad_change_is_refused_with_kafkas_code_and_leaves_the_others(change: Any, code: ErrorCode) -> None:
    image, codes = alter(new_cluster(), change, upsertion("good"))
    assert codes == {change.name: code, "good": 0}
    assert list(image.scram) == ["good"]


@pytest.mark.parametrize("changes", [(upsertion(), upsertion()), (deletion(), upsertion()), (deletion(), deletion())])
def test_one_credential_cannot_be_altered_twice(changes: tuple[Any, ...]) -> None:
    image, _ = alter(new_cluster(), upsertion())
    after, codes = alter(image, *changes)
    assert codes == {"alice": ErrorCode.DUPLICATE_RESOURCE}
    assert after.scram["alice"] == image.scram["alice"]


def test_a_users_changes_are_made_together_or_not_at_all() -> None:
    image, codes = alter(new_cluster(), upsertion(), upsertion(mechanism=2, iterations=1))
    assert codes == {"alice": ErrorCode.UNACCEPTABLE_CREDENTIAL}
    assert not image.scram
    image, codes = alter(image, upsertion(), upsertion(mechanism=2))
    assert codes == {"alice": 0}
    assert set(image.scram["alice"]) == set(ScramMechanism)
    image, codes = alter(image, deletion(), upsertion(mechanism=2, iterations=8192))
    assert codes == {"alice": 0}
    assert {m: c.iterations for m, c in image.scram["alice"].items()} == {ScramMechanism.SHA_512: 8192}


def test_the_verifier_is_the_one_of_the_rfcs_example() -> None:
    """RFC 7677, section 3: user "user", password "pencil"."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    image, _ = alter(new_cluster(), upsertion("user", salt=salt, salted_password=salted))
    found = image.scram["user"][ScramMechanism.SHA_256]
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(found.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == found.stored_key
    server = base64.b64encode(hmac.digest(found.server_key, message, "sha256"))
    assert server == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_there_are_only_so_many_users() -> None:
    policy = replace(POLICY, access=TenantSettings(users_max=2))
    image, codes = alter(new_cluster(), *(upsertion(f"u{n}") for n in range(3)), policy=policy)
    assert codes == {"u0": 0, "u1": 0, "u2": ErrorCode.POLICY_VIOLATION}
    _, codes = alter(image, upsertion("u1", mechanism=2), policy=policy)
    assert codes == {"u1": 0}
