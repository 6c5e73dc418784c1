"""What a person gives at the door, as the security settings of a client. No I/O."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from cryptography import x509

from common.settings import SettingError
from console.access.commands import TOKEN, is_kept
from console.login.encrypted_keys import ENCRYPTED, checked_key
from tidelog.admin.command_config import MECHANISMS, OAUTHBEARER, PLAIN, TOKEN_BYTES_MAX, ClientSecurity, Login
from tidelog.admin.command_config import parse_command_config as parsed

_CHAIN, _KEY, _KEY_PASSWORD = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.key.password"
ANONYMOUS = "anonymous"
CERTIFICATE = "CERTIFICATE"
TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_TOKEN = re.compile(r"[\w.~+/=-]+")
_PEM_CHARACTERS_MAX = 64 << 10
_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")
_KEYS = ("PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", ENCRYPTED)
_PEM_BLOCK = re.compile(
    r"-----BEGIN ([A-Z0-9 ]+)-----[ \t\r]*\n((?:(?!-----)[\w+/=:,\- \t\r\n])*)-----END \1-----", re.A
)


@dataclass(frozen=True, slots=True)
class Reachable:
    """The cluster of this console. `properties` are those of clients, without any login; `tenants` is DOMAIN:PORT of
    its proxies, empty without."""

    bootstrap: str
    properties: Mapping[str, str]
    tenants: str = ""

    @property
    def protocol(self) -> str:
        return self.properties.get("security.protocol", "PLAINTEXT").upper()


class Entry(NamedTuple):
    """Where a session connects, as whom. `name` is what the page calls the person; `properties` are the same for a
    command, and hold secrets. `owner`: the user or tenant whose
    sessions share a limit of their number and of threads; empty for none."""

    bootstrap: str
    security: ClientSecurity
    name: str
    properties: Mapping[str, str]
    owner: str = ""
    is_tenant: bool = False

    def __repr__(self) -> str:
        return f"Entry({self.bootstrap!r}, {self.name!r})"


def entry_of(given: Mapping[str, str], where: Reachable) -> Entry:
    """From the fields of the form. Raises SettingError, without any secret in its text. A key with a password takes its
    time, so this runs in threads."""
    way = given.get("way", "")
    if way == ANONYMOUS:
        return Entry(where.bootstrap, parsed(_without_login(where)), ANONYMOUS, _without_login(where))
    if way == CERTIFICATE:
        return _with_certificate(given, where)
    if way not in MECHANISMS:
        raise SettingError("this way to log in is not known")
    tenant = given.get("tenant", "").strip()
    if tenant and not (where.tenants and TENANT.fullmatch(tenant)):
        raise SettingError("this is no tenant's id")
    bootstrap = f"{tenant}.{where.tenants}" if tenant else where.bootstrap
    protocol = "SASL_SSL" if tenant or where.protocol.endswith("SSL") else "SASL_PLAINTEXT"
    plain = _without_login(where) | {"security.protocol": protocol.removeprefix("SASL_")}
    login = _login(way, given)
    name = login.user or subject_of(login.secret)
    properties = plain | {"security.protocol": protocol, "sasl.mechanism": login.mechanism} | _secrets(login)
    security = ClientSecurity(protocol, login, parsed(plain).context)
    shown = f"{name} of {tenant}" if tenant else name
    return Entry(bootstrap, security, shown, properties, f"tenant {tenant}" if tenant else f"user {name}", bool(tenant))


def _without_login(where: Reachable) -> dict[str, str]:
    own = {name: value for name, value in where.properties.items() if not name.startswith("sasl.")}
    return own | {"security.protocol": where.protocol.removeprefix("SASL_")}


def _login(mechanism: str, given: Mapping[str, str]) -> Login:
    if mechanism == OAUTHBEARER:
        token = given.get("token", "").strip()
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            raise SettingError("this is no token")
        return Login(mechanism, "", token)
    user, secret = given.get("user", ""), given.get("password", "")
    if not user or not secret:
        raise SettingError("a user name and a password are needed")
    if "\0" in user + secret or len(f"{user}{secret}.".splitlines()) > 1:
        raise SettingError("a user name and a password have no ends of lines in them")
    return Login(mechanism, user, secret)


def _with_certificate(given: Mapping[str, str], where: Reachable) -> Entry:
    if where.protocol != "SSL":
        raise SettingError("this cluster takes no certificates for a login")
    chain, key = given.get("chain", ""), given.get("key", "")
    if len(chain) + len(key) > _PEM_CHARACTERS_MAX:
        raise SettingError(f"a certificate and its key have at most {_PEM_CHARACTERS_MAX} characters")
    chain, key = "\n".join(_blocks(chain, _CERTIFICATES)), "".join(map(checked_key, _blocks(key, _KEYS)[:1]))
    if not chain or not key:
        raise SettingError("a certificate and its key are needed, as PEM")
    shown = {name: text.replace("\n", "\\n") for name, text in ((_CHAIN, chain), (_KEY, key))}
    if given.get("key_password"):
        shown[_KEY_PASSWORD] = given["key_password"]
    if "\0" in given.get("key_password", "") or not is_kept(shown):
        raise SettingError("a key's password has no ends of lines, no spaces around it, and no backslash at its end")
    try:
        security = parsed(_without_login(where) | shown)
    except SettingError:
        raise SettingError("this certificate and key cannot be used, or the key's password is wrong") from None
    name = _holder_of(chain)
    return Entry(where.bootstrap, security, name, _without_login(where) | shown, f"user {name}")


def _blocks(text: str, labels: Sequence[str]) -> list[str]:
    """The PEM with these labels in a text, and nothing beside it."""
    return [one[0].replace("\r", "") for one in _PEM_BLOCK.finditer(text) if one[1] in labels]


def _holder_of(chain: str) -> str:
    try:
        return x509.load_pem_x509_certificate(chain.encode()).subject.rfc4514_string() or CERTIFICATE.lower()
    except ValueError:
        return CERTIFICATE.lower()


def _secrets(login: Login) -> dict[str, str]:
    """As properties; quoted, so that any character may be in a password."""
    if login.mechanism == OAUTHBEARER:
        return {TOKEN: login.secret}
    module = "Plain" if login.mechanism == PLAIN else "Scram"
    user, secret = (re.sub(r"([\\\"])", r"\\\1", one) for one in (login.user, login.secret))
    return {"sasl.jaas.config": f'{module}LoginModule required username="{user}" password="{secret}";'}


def subject_of(token: str) -> str:
    """Whom a token says it is of, for the page alone: only brokers check it."""
    try:
        part = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return str(claims["sub"])[:100]
    except (IndexError, ValueError, KeyError, TypeError):
        return "token"
