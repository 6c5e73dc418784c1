"""`--command-config FILE`: how administration commands connect and log in, with the settings of Apache Kafka's tools.

It accepts properties of Java's clients and of librdkafka. An unknown security setting is an error; other client
settings are ignored. No error or repr shows a value, because any may be a secret.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from common.certificate_files import load_chain, read_pem
from common.settings import SettingError, read_properties

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (PLAIN, *SCRAM, OAUTHBEARER)
MODULES = {"PlainLoginModule": (PLAIN,), "ScramLoginModule": SCRAM, "OAuthBearerLoginModule": (OAUTHBEARER,)}
CONFIG_BYTES_MAX = 1 << 20
TOKEN_BYTES_MAX = 64 << 10
KNOWN = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.login.callback.handler.class",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.type",
    "ssl.ca.location",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.type",
    "ssl.key.password",
    "ssl.key.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
}
_SECURITY = ("security.", "sasl.", "ssl.")
_OF_LISTENER = ("security.protocol", "ssl.truststore.", "ssl.ca.", "ssl.endpoint.")
_JAAS = re.compile(r"\s*(?P<module>[\w.]+)\s+(?:required|requisite|sufficient|optional)\s*(?P<options>.*?);?\s*", re.S)
_JAAS_OPTION = re.compile(r"\s*(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\";]+))\s*")


@dataclass(frozen=True, slots=True)
class Login:
    """A client's identity and mechanism. `secret` is a password, or the token of OAUTHBEARER."""

    mechanism: str
    user: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How to reach a listener: `context` for TLS, `login` for SASL, each None without it."""

    protocol: str = "PLAINTEXT"
    login: Login | None = None
    context: ssl.SSLContext | None = None

    @property
    def has_tls(self) -> bool:
        return self.context is not None


def read_command_config(path: Path) -> ClientSecurity:
    """Raises SettingError, which names the file and the setting."""
    try:
        return parse_command_config(_given(path))
    except SettingError as error:
        raise SettingError(f"--command-config {path}: {error}") from None


def read_bootstrap(path: Path) -> str:
    """The addresses of brokers in such a file. Raises SettingError."""
    try:
        found = _given(path).get("bootstrap.servers")
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    if not found:
        raise SettingError(f"{path}: bootstrap.servers is missing")
    return found


def read_listener(path: Path) -> dict[str, str]:
    """What such a file says of the brokers' listener, and nothing of who logs in there, which it need not say. Raises
    SettingError, which names the file and the setting."""
    try:
        given = _given(path)
        _check_known(given)
        found = {name: value for name, value in given.items() if name.startswith(_OF_LISTENER)}
        protocol = _protocol(found)
        parse_command_config(found | {"security.protocol": protocol.removeprefix("SASL_")})
    except SettingError as error:
        raise SettingError(f"--command-config {path}: {error}") from None
    return found


def _given(path: Path) -> dict[str, str]:
    try:
        data = path.read_bytes()[: CONFIG_BYTES_MAX + 1]
    except OSError as error:
        raise SettingError(str(error.strerror)) from None
    if len(data) > CONFIG_BYTES_MAX:
        raise SettingError(f"more than {CONFIG_BYTES_MAX} bytes")
    return _properties(data)


def _properties(data: bytes) -> dict[str, str]:
    try:
        return read_properties(data.decode())
    except UnicodeDecodeError:
        raise SettingError("it is not UTF-8") from None
    except SettingError as error:
        where, _, _ = str(error).partition(":")  # the rest is the line, which may hold a password
        raise SettingError(f"{where} is not name=value") from None


def parse_command_config(given: Mapping[str, str]) -> ClientSecurity:
    """Raises SettingError."""
    _check_known(given)
    protocol = _protocol(given)
    login = _login(given) if protocol.startswith("SASL_") else None
    context = _context(given) if protocol.endswith("SSL") else None
    return ClientSecurity(protocol, login, context)


def _check_known(given: Mapping[str, str]) -> None:
    for name in given:
        if name.startswith(_SECURITY) and name not in KNOWN:
            raise SettingError(f"{name}: it is not known here")


def _protocol(given: Mapping[str, str]) -> str:
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise SettingError(f"security.protocol: it must be one of {', '.join(PROTOCOLS)}")
    return protocol


def _login(given: Mapping[str, str]) -> Login:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", "")).upper()
    if mechanism not in MECHANISMS:
        raise SettingError(f"sasl.mechanism: it must be one of {', '.join(MECHANISMS)}")
    options = _jaas_options(given["sasl.jaas.config"], mechanism) if "sasl.jaas.config" in given else {}
    if mechanism == OAUTHBEARER:
        return Login(mechanism, "", _token(given.get("sasl.oauthbearer.token.endpoint.url", "")))
    user, secret = (given.get(f"sasl.{name}", options.get(name, "")) for name in ("username", "password"))
    if not user or not secret or "\0" in user + secret:
        raise SettingError(
            "sasl.username and sasl.password, or both in sasl.jaas.config, are needed for this mechanism"
        )
    return Login(mechanism, user, secret)


def _jaas_options(text: str, mechanism: str) -> dict[str, str]:
    match = _JAAS.fullmatch(text)
    if match is None:
        raise SettingError('sasl.jaas.config: it must be MODULE required username="…" password="…";')
    module = match["module"].rpartition(".")[2]
    if mechanism not in MODULES.get(module, ()):
        raise SettingError(f"sasl.jaas.config: {module} is not the login module of {mechanism}")
    options, at, words = dict[str, str](), 0, match["options"]
    while at < len(words):
        option = _JAAS_OPTION.match(words, at)
        if option is None:
            raise SettingError('sasl.jaas.config: its options must be name="value"')
        name, quoted, bare = option.groups()
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        at = option.end()
    return options


def _token(url: str) -> str:
    name = "sasl.oauthbearer.token.endpoint.url"
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme != "file" or not parts.path:
        raise SettingError(f"{name}: it must be file:///PATH of a file that holds a token")
    try:
        token = Path(unquote(parts.path)).read_bytes()[: TOKEN_BYTES_MAX + 1].decode("ascii").strip()
    except OSError as error:
        raise SettingError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{name}: no token is in it") from None
    if not re.fullmatch(r"[\w.~+/=-]+", token) or len(token) > TOKEN_BYTES_MAX:
        raise SettingError(f"{name}: no token is in it")
    return token


def _context(given: Mapping[str, str]) -> ssl.SSLContext:
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if given.get(name, "PEM").upper() != "PEM":
            raise SettingError(f"{name}: it must be PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise SettingError("ssl.endpoint.identification.algorithm: it must be https, or nothing")
    context.check_hostname = algorithm == "https"
    _trust(context, given)
    _show_certificate(context, given)
    return context


def _trust(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    for name in ("ssl.truststore.location", "ssl.ca.location", "ssl.truststore.certificates"):
        if not given.get(name):
            continue
        text = _pem_text(given[name]) if name.endswith("certificates") else _pem_file(name, given[name])
        try:
            context.load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError):
            raise SettingError(f"{name}: no certificate in it can be used") from None
        return
    context.load_default_certs()


def _show_certificate(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    if given.get("ssl.keystore.location"):
        name = "ssl.keystore.location"
        chain = key = _pem_file(name, given[name])
    elif given.get("ssl.keystore.certificate.chain"):
        name = "ssl.keystore.certificate.chain"
        chain, key = _pem_text(given[name]), _pem_text(given.get("ssl.keystore.key", ""))
    elif given.get("ssl.certificate.location"):
        name, key_name = "ssl.certificate.location", "ssl.key.location"
        chain = _pem_file(name, given[name])
        key = _pem_file(key_name, given[key_name]) if given.get(key_name) else chain
    else:
        return
    try:
        load_chain(context, chain, "" if key is chain else key, given.get("ssl.key.password", ""))
    except (ssl.SSLError, ValueError):
        raise SettingError(f"{name}: its certificate and key cannot be used, or ssl.key.password is wrong") from None


def _pem_text(value: str) -> str:
    return value.replace("\\n", "\n")


def _pem_file(name: str, path: str) -> str:
    try:
        return read_pem(path)
    except OSError as error:
        raise SettingError(f"{name}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingError(f"{name}: {path}: {error}; a JKS or PKCS12 store has to be made PEM") from None
