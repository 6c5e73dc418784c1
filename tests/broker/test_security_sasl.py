"""SASL exchanges and logins without a network, and the gate of every API."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from broker.security.credentials import Credentials
from broker.security.decoy_verifiers import DecoyVerifiers
from broker.security.exchange import Authenticated, AuthenticationFailed, Exchange
from broker.security.login import FRAMES_MAX, Login, until_answer
from broker.security.oauth import KeySet, OauthExchange
from broker.security.plain import PlainExchange
from broker.security.scram import ScramExchange
from broker.security.session import ClientSession
from broker.security.verifications import TooManyVerifications, Verifications
from common.errors import ErrorCode
from common.machine import MachineClock
from common.node_settings.security import SecuritySettings
from common.pacing import at_once
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ApiKeyRecord, ScramCredentialRecord, ScramMechanism, TenantRecord

pytestmark = pytest.mark.virtual_time

SECRET = b"the cluster's secret"
HASHES = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
TENANT, OTHER, KEY = "lkc-aaaaaa", "lkc-bbbbbb", "TKAAAAAAAAAAAAAA"


def verifier(user: str, password: str, mechanism: ScramMechanism) -> ScramCredentialRecord:
    name, salt = HASHES[mechanism], user.encode() + b" has salt"
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, 4_096)
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredentialRecord(user, mechanism, salt, stored, hmac.digest(salted, b"Server Key", name), 4_096)


def image() -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all(
        [
            verifier("alice", "open, sesame=1", ScramMechanism.SHA_256),
            verifier("alice", "open, sesame=1", ScramMechanism.SHA_512),
            TenantRecord(TENANT, "one", "default", 0),
            TenantRecord(OTHER, "two", "default", 0),
            ApiKeyRecord(KEY, TENANT, "", (), 0),
            verifier(KEY, "key", ScramMechanism.SHA_256),
        ]
    )
    return delta.image()


def credentials(tenant: str | None = None) -> Credentials:
    return credentials_of(image(), tenant)


def credentials_of(known: MetadataImage, tenant: str | None = None) -> Credentials:
    decoys = DecoyVerifiers(SECRET)
    decoys.metadata_changed(at_once(differing(EMPTY_IMAGE, known)), known)
    return Credentials(lambda: known, decoys, tenant)


def scram_client(
    exchange: ScramExchange, mechanism: ScramMechanism, user: str, password: str, alter: str = ""
) -> Authenticated:
    """A client by RFC 5802's letter; `alter` is put behind the nonce of its second message."""
    name = HASHES[mechanism]
    first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r=clientnonce"
    challenge = exchange.step(b"n,," + first.encode())
    assert isinstance(challenge, bytes)
    fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
    assert fields["r"].startswith("clientnonce")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", name)
    without = f"c={base64.b64encode(b'n,,').decode()},r={fields['r']}{alter}"
    signed = f"{first},{challenge.decode()},{without}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
    done = exchange.step(without.encode() + b",p=" + proof)
    assert isinstance(done, Authenticated)
    server = hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name)
    assert done.answer == b"v=" + base64.b64encode(server), "the server proves that it knows the verifier"
    return done


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_knows_who_has_the_password(mechanism: ScramMechanism) -> None:
    exchange = ScramExchange(mechanism, credentials().scram, b"nonce" * 4)
    assert scram_client(exchange, mechanism, "alice", "open, sesame=1").user == "alice"


@pytest.mark.parametrize(
    ("user", "password", "alter"),
    [("alice", "wrong", ""), ("nobody", "open, sesame=1", ""), (KEY, "key", ""), ("alice", "open, sesame=1", "x")],
)
def test_scram_refuses(user: str, password: str, alter: str) -> None:
    """A wrong password, an unknown user, a tenant's key where operators log in, an altered nonce."""
    exchange = ScramExchange(ScramMechanism.SHA_256, credentials().scram, b"nonce" * 4)
    with pytest.raises(AuthenticationFailed):
        scram_client(exchange, ScramMechanism.SHA_256, user, password, alter)


def test_a_recorded_exchange_cannot_be_played_again() -> None:
    said: list[bytes] = []

    class Recorded(ScramExchange):
        def step(self, data: bytes) -> Any:
            said.append(data)
            return super().step(data)

    scram_client(
        Recorded(ScramMechanism.SHA_256, credentials().scram, b"1" * 24), ScramMechanism.SHA_256, "alice",
        "open, sesame=1",
    )  # fmt: skip
    again = ScramExchange(ScramMechanism.SHA_256, credentials().scram, b"2" * 24)
    again.step(said[0])
    with pytest.raises(AuthenticationFailed):
        again.step(said[1])


@pytest.mark.parametrize("data", [b"", b"p=tls-unique,,n=a,r=b", b"n,,n=a=b,r=c", b"n,,r=b", b"\xff", b"n,," * 9_000])
def test_scram_refuses_what_is_no_first_message(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramExchange(ScramMechanism.SHA_256, credentials().scram, b"1" * 24).step(data)


def check_plain(user: str, password: str, tenant: str | None = None) -> Authenticated:
    step = PlainExchange(credentials(tenant)).step(b"\0" + user.encode() + b"\0" + password.encode())
    assert callable(step)
    return step()


def test_plain_checks_against_the_verifier() -> None:
    assert check_plain("alice", "open, sesame=1").user == "alice"
    assert check_plain(KEY, "key", TENANT).user == KEY


@pytest.mark.parametrize("mechanism", HASHES)
def test_a_verifier_of_either_kind_alone_serves_plain(mechanism: ScramMechanism) -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all([verifier("carol", "pa55", mechanism)])
    lookup = credentials_of(delta.image())
    good, wrong = (PlainExchange(lookup).step(b"\0carol\0" + password) for password in (b"pa55", b"wrong"))
    assert callable(good) and callable(wrong)
    assert good().user == "carol"
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        wrong()


@pytest.mark.parametrize(
    ("user", "password", "tenant"),
    [
        ("alice", "wrong", None),
        ("nobody", "open, sesame=1", None),
        (KEY, "key", None),
        (KEY, "key", OTHER),
        (KEY, "key", ""),
        ("alice", "open, sesame=1", TENANT),
    ],
)
def test_plain_refuses_all_alike(user: str, password: str, tenant: str | None) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        check_plain(user, password, tenant)
    assert refused.value.cause == "invalid credentials"
    assert password not in str(refused.value)


# tokens ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def issuer() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def token_of(key: Any, algorithm: str = "RS256", **claims: Any) -> bytes:
    body = {"sub": "alice", "exp": 4_102_444_800, "aud": "tidelog", "iss": "me"} | claims
    return jwt.encode(body, key, algorithm=algorithm, headers={"kid": "k1"}).encode()


@pytest.fixture
def tokens(issuer: rsa.RSAPrivateKey, tmp_path: Path) -> OauthExchange:
    document = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(issuer.public_key()))
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [document | {"kid": "k1", "alg": "RS256", "use": "sig"}]}))
    config = SecuritySettings(jwks_endpoint_url=path.as_uri(), expected_audience=("tidelog",), expected_issuer="me")
    return OauthExchange(config, KeySet(config, MachineClock()))


def say(exchange: Exchange, token: bytes) -> Authenticated:
    step = exchange.step(b"n,,\x01auth=Bearer " + token + b"\x01\x01")
    assert callable(step)
    return step()


def test_a_good_token_names_its_subject_and_its_end(tokens: OauthExchange, issuer: rsa.RSAPrivateKey) -> None:
    done = say(tokens, token_of(issuer))
    assert (done.user, done.expires_ms) == ("alice", 4_102_444_800_000)


@pytest.mark.parametrize(
    "claims",
    [{"exp": 1}, {"aud": "another"}, {"iss": "another"}, {"sub": ""}, {"sub": 7}, {"sub": f"{TENANT}_{KEY}"}],
)
def test_a_token_is_refused(tokens: OauthExchange, issuer: rsa.RSAPrivateKey, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationFailed):
        say(tokens, token_of(issuer, **claims))


def test_forged_tokens_are_refused(tokens: OauthExchange) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for token in (token_of(other), token_of("x" * 32, "HS256"), token_of(None, "none"), b"nonsense"):
        with pytest.raises(AuthenticationFailed):
            say(tokens, token)


# logins ----------------------------------------------------------------------------------------------------


class Services:
    """A broker that checks passwords by itself."""

    def __init__(self) -> None:
        self.mechanisms: Sequence[str] = ["PLAIN"]
        self.was_shut = asyncio.Event()
        self.max_reauth_ms = 0
        self.failed_delay_s = 0.0
        self.authentication_s = 30.0
        self.reauthentication_s = 1.0
        self.log: list[str] = []

    def exchange(self, mechanism: str) -> Exchange:
        return PlainExchange(credentials())

    async def verify(self, work: Any) -> Authenticated:
        return await asyncio.to_thread(work)

    def principal(self, user: str) -> str:
        return f"User:{user}"

    def admit(self, login: Login, user: str) -> str:
        login.session.principal = self.principal(user)
        self.log.append(f"admit {user}")
        return ""

    def shut(self, login: Login) -> None:
        self.log.append("shut")
        self.was_shut.set()

    def failed(self, cause: str, mechanism: str) -> None:
        self.log.append(f"failed {cause}")

    def gone(self, login: Login) -> None:
        self.log.append("gone")

    def now_ms(self) -> int:
        return 0


class Connection:
    is_closed = False

    def close_after_flush(self) -> None:
        self.is_closed = True


def login(services: Services) -> Login:
    return Login(ClientSession("SASL", False, "10.0.0.1", Connection()), services)


GOOD = b"\0alice\0open, sesame=1"


async def test_a_login_by_handshake_and_password() -> None:
    services = Services()
    one = login(services)
    assert one.handshake(1, "PLAIN").error_code == 0
    answer = await one.authenticate(GOOD)
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert services.log == ["admit alice"]
    one.connection_closed()


@pytest.mark.parametrize("last_word", [b"\x01", b"", b"n,,\x01auth=Bearer anything\x01\x01"])
async def test_a_refused_token_gets_a_status_and_whatever_is_said_to_that_the_failure(
    tokens: OauthExchange, issuer: rsa.RSAPrivateKey, last_word: bytes
) -> None:
    """RFC 7628: a client of Kafka ends with an authentication error by the second answer, and by that alone."""

    class Tokens(Services):
        def exchange(self, mechanism: str) -> Exchange:
            return tokens

    services = Tokens()
    services.mechanisms = ["OAUTHBEARER"]
    one = login(services)
    one.handshake(1, "OAUTHBEARER")
    answer = await one.authenticate(b"n,,\x01auth=Bearer " + token_of(issuer, aud="another") + b"\x01\x01")
    assert answer.error_code == 0 and json.loads(answer.auth_bytes) == {"status": "invalid_token"}
    assert not services.log and one.count_frame(), "the client has the word"
    answer = await one.authenticate(last_word)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and answer.auth_bytes == b""
    assert services.log == ["failed invalid token", "shut"] and not one.count_frame()
    one.connection_closed()


async def test_a_failed_login_is_over() -> None:
    services = Services()
    one = login(services)
    one.handshake(1, "PLAIN")
    answer = await one.authenticate(b"\0alice\0wrong")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not one.count_frame()
    one.answer_follows()
    await asyncio.sleep(0)
    assert one.session.connection.is_closed
    assert services.log == ["failed invalid credentials", "shut"]
    assert (await one.authenticate(GOOD)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert "admit alice" not in services.log
    one.connection_closed()


@given(taken=st.floats(0, 100), delay=st.floats(0.001, 60))
def test_a_failure_is_answered_whole_delays_after_it_was_asked(taken: float, delay: float) -> None:
    rest = until_answer(taken, delay)
    assert 0 < rest <= delay
    turns = (taken + rest) / delay
    assert turns == pytest.approx(round(turns), abs=1e-6 * max(1.0, turns)) and round(turns) >= 1
    assert until_answer(taken, 0) == 0


async def test_what_a_check_took_does_not_show_in_the_time_of_its_failure() -> None:
    """A stranger, a user with either kind of verifier alone and with both, cheap and dear ones: one time for all."""
    loop = asyncio.get_running_loop()
    answered = []

    class Slow(Services):
        taken = 0.0

        async def verify(self, work: Any) -> Authenticated:
            await asyncio.sleep(self.taken)
            done: Authenticated = work()
            return done

    for taken in (0.0, 0.002, 0.004, 0.03, 0.0999):
        began, services = loop.time(), Slow()
        services.failed_delay_s, services.taken = 0.1, taken
        one = login(services)
        one.handshake(1, "PLAIN")
        await one.authenticate(b"\0alice\0wrong")
        answered.append(loop.time() - began)
        one.connection_closed()
    assert answered == pytest.approx([0.1] * 5, abs=0.0001)


async def test_out_of_turn_and_unknown_mechanisms() -> None:
    for begin in ([], [(1, "GSSAPI")], [(1, "PLAIN"), (1, "PLAIN")]):
        one = login(Services())
        codes = [one.handshake(*step).error_code for step in begin]
        assert codes in ([], [ErrorCode.UNSUPPORTED_SASL_MECHANISM], [0, ErrorCode.ILLEGAL_SASL_STATE])
        assert (await one.authenticate(GOOD)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        one.connection_closed()


async def test_another_user_cannot_take_over_a_session() -> None:
    services = Services()
    one = login(services)
    one.handshake(1, "PLAIN")
    await one.authenticate(GOOD)
    one.session.principal = "User:bob"
    await asyncio.sleep(services.reauthentication_s)
    one.handshake(1, "PLAIN")
    assert (await one.authenticate(GOOD)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    one.connection_closed()


@pytest.mark.parametrize(("after_s", "code"), [(0.9, ErrorCode.ILLEGAL_SASL_STATE), (1.0, ErrorCode.NONE)])
async def test_a_session_authenticates_again_after_a_second_and_no_sooner(after_s: float, code: ErrorCode) -> None:
    one = login(Services())
    one.handshake(1, "PLAIN")
    await one.authenticate(GOOD)
    await asyncio.sleep(after_s)
    assert one.handshake(1, "PLAIN").error_code == code
    one.connection_closed()


async def test_a_session_ends() -> None:
    services = Services()
    services.max_reauth_ms = 20
    one = login(services)
    one.handshake(1, "PLAIN")
    assert (await one.authenticate(GOOD)).session_lifetime_ms == 20
    assert "shut" not in services.log
    async with asyncio.timeout(30):
        await services.was_shut.wait()
    one.connection_closed()


async def test_unauthenticated_connections_may_ask_for_little() -> None:
    one = login(Services())
    assert [one.count_frame() for _ in range(FRAMES_MAX + 1)] == [True] * FRAMES_MAX + [False]
    one.connection_closed()


async def test_verifications_are_bounded_for_all_and_for_each_address() -> None:
    now = [0.0]
    queue, done = Verifications(1, 3, 2, lambda: now[0]), Authenticated("a")
    running = [asyncio.ensure_future(queue.run("one", lambda: done)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyVerifications):
        await queue.run("one", lambda: done)
    running.append(asyncio.ensure_future(queue.run("two", lambda: done)))
    await asyncio.sleep(0)
    with pytest.raises(TooManyVerifications):
        await queue.run("three", lambda: done)
    now[0] = 0.5
    assert queue.waited_s == 1.0, "one of the three has its turn"
    assert await asyncio.gather(*running) == [done] * 3
    assert queue.queued == 0 and await queue.run("one", lambda: done) == done
