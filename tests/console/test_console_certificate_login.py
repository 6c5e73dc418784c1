"""Logins by a certificate: what of the form reaches the files of commands, and what a key may cost."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import threading
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from common.settings import SettingError, read_properties
from console.access.commands import Commands, is_kept
from console.access.trouble import Trouble
from console.application import application
from console.login.credentials import Reachable, entry_of
from console.login.encrypted_keys import ENCRYPTED, ROUNDS_MAX, checked_key
from console.options import ConsoleOptions
from console.web.guard import LOOPBACK
from tests.console.fake_cluster import FakeClient, FakeDoor, log_in
from tests.proxy.proxy_world import Authority
from tidelog.admin.command_config import parse_command_config

WHERE = Reachable("b0:9092", {"security.protocol": "SSL"})
OWN = Authority.make()
INJECTED = "ssl.keystore.location=/etc/tidelog/admin.pem"
ENDS = ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
PASSWORD = "no ends: =\\n#"


def key_pem(password: str = "", form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> str:
    hidden = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return OWN.key.private_bytes(serialization.Encoding.PEM, form, hidden).decode()


def fields(**changed: str) -> dict[str, str]:
    return {"way": "CERTIFICATE", "chain": OWN.pem(), "key": key_pem()} | changed


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", ["", PASSWORD])
def test_commands_log_in_by_the_certificate_of_the_session(password: str, form: serialization.PrivateFormat) -> None:
    key, chain = key_pem(password, form).replace("\n", "\r\n"), OWN.pem().replace("\n", "\r\n")
    entry = entry_of(fields(key=key, chain=chain, key_password=password), WHERE)
    assert entry.name == "CN=test authority"
    assert is_kept(entry.properties)
    assert isinstance(parse_command_config(entry.properties).context, ssl.SSLContext)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("password", ["x{}" + INJECTED, "{}" + INJECTED, "x{}", "x{}{}", "x\\"])
def test_no_password_of_a_key_ends_its_line(password: str, end: str) -> None:
    with pytest.raises(SettingError):
        entry_of(fields(key_password=password.replace("{}", end)), WHERE)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ["chain", "key"])
def test_nothing_beside_the_pem_reaches_a_command(name: str, end: str) -> None:
    pem, clean = fields()[name], entry_of(fields(), WHERE).properties
    for text in (f"{INJECTED}{end}{pem}", f"{pem}{end}{INJECTED}", f"{pem}{end}{INJECTED}\n\\", f"{pem}\\"):
        assert entry_of(fields(**{name: text}), WHERE).properties == clean
    inside = pem.replace("-----\n", f"-----\n{end}{INJECTED}{end}", 1)
    with pytest.raises(SettingError):
        entry_of(fields(**{name: inside}), WHERE)


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=9) | st.sampled_from([f"x{one}y=z" for one in ENDS]))
)
def test_what_is_kept_is_read_again(properties: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    if is_kept(properties):
        assert read_properties(text) == properties
    else:
        assert any(value.strip() != value or len(f"{value}.".splitlines()) > 1 or value.endswith("\\")
                   for value in properties.values())  # fmt: skip


@pytest.mark.parametrize("end", [*ENDS, "\\"])
async def test_a_command_is_not_begun_with_other_properties_than_those_of_the_login(end: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Trouble, match="cannot be given"):
        await Commands().run(["topics"], "b0:9092", {"ssl.key.password": f"x{end}"}, limit_s=1.0)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("end", ENDS)
def test_no_password_of_a_user_ends_its_line(end: str) -> None:
    where = Reachable("b0:9092", {"security.protocol": "SASL_PLAINTEXT"})
    for given_ in ({"user": "u", "password": f"x{end}"}, {"user": f"u{end}", "password": "x"}):
        with pytest.raises(SettingError):
            entry_of({"way": "PLAIN"} | given_, where)


def test_pem_without_an_end_is_searched_once() -> None:
    for text in (
        "-----BEGIN PRIVATE KEY-----\n" * 1_000,
        "-----BEGIN " + "A" * 60_000,
        "-----BEGIN A-----\n" + "b" * 9_999,
    ):
        with contextlib.suppress(SettingError):
            entry_of(fields(key=text), WHERE)


def tlv(tag: int, *content: bytes) -> bytes:
    inner = b"".join(content)
    size = b"" if len(inner) < 0x80 else len(inner).to_bytes(4)
    return bytes([tag, 0x84 if size else len(inner)]) + size + inner


def name(text: str) -> bytes:
    return tlv(0x06, bytes.fromhex(text))


PBES2, PBKDF2, SCRYPT, PKCS12 = "2a864886f70d01050d", "2a864886f70d01050c", "2b06010401da47040b", "2a864886f70d010c0103"


def encrypted(rounds: int, scheme: str = PBES2, function: str = PBKDF2) -> bytes:
    """The DER of a key that no password opens."""
    count = tlv(0x02, rounds.to_bytes(9, signed=True))
    kdf = tlv(0x30, name(function), tlv(0x30, tlv(0x04, b"saltsalt"), count))
    cipher = tlv(0x30, name("60864801650304012a"), tlv(0x04, bytes(16)))
    return tlv(0x30, tlv(0x30, name(scheme), tlv(0x30, kdf, cipher)), tlv(0x04, bytes(160)))


def armoured(der: bytes) -> str:
    return f"-----BEGIN {ENCRYPTED}-----\n{base64.encodebytes(der).decode()}-----END {ENCRYPTED}-----"


def test_a_key_that_costs_too_much_is_refused_before_it_is_opened() -> None:
    for rounds in (ROUNDS_MAX + 1, 2_000_000, 1 << 62, 0, -1):
        with pytest.raises(SettingError, match="too much work"):
            entry_of(fields(key=armoured(encrypted(rounds)), key_password="x"), WHERE)
    with pytest.raises(SettingError, match="password is wrong"):
        entry_of(fields(key=armoured(encrypted(1)), key_password="x"), WHERE)
    assert checked_key(armoured(encrypted(ROUNDS_MAX)))


WHOLE = encrypted(1)


@pytest.mark.parametrize(
    "der",
    [b"", b"0", b"0\x80", WHOLE[:-1], WHOLE + b"0", tlv(0x30, WHOLE), encrypted(1, PKCS12), encrypted(1, PBES2, SCRYPT),
     tlv(0x30, tlv(0x02, b"\0"), tlv(0x04, b"x")), b"\x30\xff" + b"\xff" * 200],
)  # fmt: skip
def test_an_encrypted_key_that_is_not_understood_is_not_opened(der: bytes) -> None:
    with pytest.raises(SettingError, match="not of a known form"):
        entry_of(fields(key=armoured(der), key_password="x"), WHERE)


@pytest.mark.parametrize("between", ["=", "-", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"])
def test_no_other_key_is_opened_than_the_one_that_was_looked_at(between: str) -> None:
    """OpenSSL ends at some characters, and takes off an encryption around the other one."""
    pem = armoured(WHOLE)
    with pytest.raises(SettingError, match="not of a known form"):
        checked_key(pem.replace("-----\n", f"-----\n{between}", 1))


@given(st.binary(max_size=40), st.integers(0, len(WHOLE)))
def test_no_bytes_break_the_look_at_a_key(data: bytes, at: int) -> None:
    with contextlib.suppress(SettingError):
        checked_key(armoured(WHOLE[:at] + data + WHOLE[at + len(data) :]))


class Watched(dict[str, Any]):
    """Properties that know in which threads they were read for a login."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.threads: list[str] = []

    def items(self) -> Any:
        self.threads.append(threading.current_thread().name)
        return super().items()


def test_no_key_is_opened_on_the_loop() -> None:
    watched = Watched({"security.protocol": "SSL"})
    options = ConsoleOptions(Reachable("b0:9092", watched), hosts=LOOPBACK)
    app = application(options, FakeDoor(FakeClient(), ()))
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as browser:
        assert log_in(browser, **fields(key=key_pem("x"), key_password="x")).status_code == 303
    assert watched.threads
    assert all(one.startswith("console-login") for one in watched.threads)
