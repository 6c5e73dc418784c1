"""Logins by token and by client certificate, in a browser: the brokers know the person, and ACLs decide."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from bench.console_program import ConsoleProgram
from bench.embedded import EmbeddedCluster
from tests.token_issuer import token_settings
from tidelog.cluster.certificates import CLIENT, authority, certificate

OPERATOR, GUEST = "operator", "guest"
SUBJECT = "CN={},OU=client,O=Tidelog"


@pytest.fixture(scope="module")
def issuer() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def guarded(
    issuer: rsa.RSAPrivateKey, tmp_path_factory: pytest.TempPathFactory, _browser_is_there: None
) -> Iterator[EmbeddedCluster]:
    """A broker that takes tokens on one listener, certificates on the other, and lets the operator alone do things."""
    settings = token_settings(issuer, tmp_path_factory.mktemp("issuer")) | {
        "log.dir.free.bytes.min": "0",
        "ssl.client.auth": "required",
        "super.users": f"User:{OPERATOR};User:{SUBJECT.format(OPERATOR)}",
    }
    with EmbeddedCluster(1, settings, controllers=1, tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@contextlib.contextmanager
def console_over(protocol: str, guarded: EmbeddedCluster, files: Path) -> Iterator[str]:
    """The address of a console on the listener of this protocol."""
    config = files / f"{protocol}.properties"
    config.write_text(f"security.protocol={protocol}\n")
    with ConsoleProgram(guarded, "--command-config", str(config)) as started:
        yield started.address


@pytest.fixture(scope="module")
def by_token(guarded: EmbeddedCluster, files: Path) -> Iterator[str]:
    with console_over("SASL_PLAINTEXT", guarded, files) as address:
        yield address


@pytest.fixture(scope="module")
def by_certificate(guarded: EmbeddedCluster, files: Path) -> Iterator[str]:
    with console_over("SSL", guarded, files) as address:
        yield address


def token_of(issuer: rsa.RSAPrivateKey, subject: str, audience: str = "tidelog") -> str:
    now = int(time.time())
    body = {"sub": subject, "aud": audience, "iat": now, "exp": now + 3600}
    return jwt.encode(body, issuer, algorithm="RS256", headers={"kid": "k1"})


def enter_with_token(page: Any, address: str, token: str) -> None:
    page.goto(f"{address}/login")
    page.get_by_label("OAuth token (JWT)").fill(token)
    with page.expect_navigation():
        page.get_by_role("button", name="Log in with the token").click()


def enter_with_certificate(page: Any, address: str, pem: str) -> None:
    """The parts of a file of `tidelog certificates make`: first the key, then the chain."""
    at = pem.index("-----BEGIN CERTIFICATE")
    page.goto(f"{address}/login")
    page.get_by_label("Certificate and its chain (PEM)").fill(pem[at:])
    page.get_by_label("Key (PEM)").fill(pem[:at])
    with page.expect_navigation():
        page.get_by_role("button", name="Log in with the certificate").click()


def pem_of(cluster: EmbeddedCluster, files: Path, name: str, *, of_cluster: bool = True) -> str:
    directory = cluster.data / "tls" if of_cluster else files
    certificate(files, f"{name}.pem", authority(directory), CLIENT, name, ())
    return (files / f"{name}.pem").read_text()


def make_topic(page: Any, address: str, name: str) -> None:
    page.goto(f"{address}/new-topic")
    page.get_by_label("Name", exact=False).first.fill(name)
    page.get_by_role("button", name="Create").click()


def assert_may_all(page: Any, address: str, name: str, topic: str) -> None:
    """This person makes a topic, which it could not as anyone else."""
    assert name in page.locator(".person").inner_text()
    make_topic(page, address, topic)
    page.locator(".notice").filter(has_text=f"topic {topic} was created").wait_for()
    page.goto(f"{address}/topics/{topic}")
    page.wait_for_load_state("networkidle")
    assert page.locator(".trouble").count() == 0


def assert_may_nothing(page: Any, address: str, name: str, topic: str) -> None:
    """This person is refused where it asks, and the page goes on."""
    assert name in page.locator(".person").inner_text()
    page.goto(f"{address}/topics")
    assert page.locator("h1").inner_text() == "Topics"
    assert topic not in page.locator("main").inner_text()
    page.goto(f"{address}/topics/{topic}")
    assert "you lack the right" in page.locator(".trouble").first.inner_text()
    page.goto(f"{address}/balance")
    assert "you lack the right" in page.locator("#balance .trouble").inner_text()
    make_topic(page, address, "forbidden")
    refusal = page.wait_for_selector(".outcome .trouble")
    assert "you lack the right" in refusal.inner_text()
    assert page.get_by_label("Name", exact=False).first.input_value() == "forbidden", "what was written stays"


def test_a_token_says_who_someone_is(stranger: Any, by_token: str, issuer: rsa.RSAPrivateKey) -> None:
    enter_with_token(stranger, by_token, token_of(issuer, OPERATOR, audience="another"))
    assert "cannot log in" in stranger.locator(".trouble").inner_text()
    enter_with_token(stranger, by_token, token_of(issuer, OPERATOR))
    assert_may_all(stranger, by_token, OPERATOR, "of-a-token")
    stranger.get_by_role("button", name="Log out").click()
    enter_with_token(stranger, by_token, token_of(issuer, GUEST))
    assert_may_nothing(stranger, by_token, GUEST, "of-a-token")


def test_a_certificate_says_who_someone_is(
    stranger: Any, by_certificate: str, guarded: EmbeddedCluster, files: Path
) -> None:
    enter_with_certificate(stranger, by_certificate, pem_of(guarded, files, "forged", of_cluster=False))
    assert stranger.locator(".trouble").count() == 1
    enter_with_certificate(stranger, by_certificate, pem_of(guarded, files, OPERATOR))
    assert_may_all(stranger, by_certificate, SUBJECT.format(OPERATOR), "of-a-certificate")
    stranger.get_by_role("button", name="Log out").click()
    enter_with_certificate(stranger, by_certificate, pem_of(guarded, files, GUEST))
    assert_may_nothing(stranger, by_certificate, SUBJECT.format(GUEST), "of-a-certificate")
