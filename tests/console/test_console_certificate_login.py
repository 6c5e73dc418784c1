"""Logins by a certificate: what of the form reaches the files of commands, and what a key may cost."""

from __future__ import annotations

import contextlib
import os
import ssl

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from common.settings import SettingError, read_properties
from console.access.commands import Commands, is_kept
from console.access.trouble import Trouble
from console.login.credentials import Reachable, entry_of
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
