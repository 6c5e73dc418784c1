"""TLS for listeners and for links between nodes: contexts from PEM, reloaded when the files change; the handshake.

The context is read for each connection, so that the next handshake uses a changed certificate without a restart. Files
that do not load change nothing and are logged once. Sessions are not resumed: with ECDSA that saves nothing, and
tickets cost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass

from msgspec import Struct

from common.certificate_files import FileState, load_chain, private_key_in, read_pem, state_of
from common.lifecycle import duty
from common.node_settings.listeners import TlsSettings
from common.ports import Address, Clock, Network, SecureSocket, Socket, Wants
from common.settings import SettingError
from wire.principal_mapping import InvalidRules, PrincipalMapping

_log = logging.getLogger(__name__)

VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_OF_1_3 = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"})
EXPIRY_WARNING_DAYS = 14
EXPIRY_SAID_AGAIN_MS = 12 * 3_600_000
DAY_MS = 86_400_000
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_CERTIFICATES = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TlsConfig(TlsSettings):
    """The settings `ssl.…` of listener `name`, PEM throughout: a file that holds key and chain, or both as text.

    Without a truststore no peer's certificate can be verified, so `client_auth` must be "none".
    """

    name: str = ""


class LoadedTls(Struct, frozen=True):
    """The contexts made of the settings and their files."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    expires_ms: int | None  # of the first certificate; None without one
    state: FileState


class TlsContexts:
    """The contexts of one listener, or of a node's links.

    Raises SettingError when a file does not load. `refresh` keeps the old contexts instead. `loaded`: by `load_tls`,
    which takes too long for an event loop; without it the files are read here.
    """

    def __init__(self, config: TlsConfig, clock: Clock, loaded: LoadedTls | None = None) -> None:
        self.config = config
        self._clock = clock
        try:
            self.principals = PrincipalMapping(config.principal_mapping_rules)
        except InvalidRules as error:
            raise SettingError(f"ssl.principal.mapping.rules: {error}") from error
        self._loaded = load_tls(config) if loaded is None else loaded
        self._failed: FileState | None = None
        self._said_ms: int | None = None
        self.reloads = 0
        self._look_at_expiry()

    @property
    def server(self) -> ssl.SSLContext:
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        return self._loaded.client

    @property
    def expires_ms(self) -> int | None:
        """Wall time at which the certificate expires; None without one."""
        return self._loaded.expires_ms

    async def refresh(self) -> None:
        """Load changed files, and log when the certificate is about to expire. Called every few seconds."""
        state = await asyncio.to_thread(_state, self.config)
        if state != self._loaded.state:
            name = self.config.name
            try:
                self.use(await self.read())
            except SettingError as error:  # retried each time, because the cause may not be in the files
                if state != self._failed:
                    _log.error("changed certificates are not used", extra={"listener": name, "reason": str(error)})
                self._failed = state
        self._look_at_expiry()

    async def read(self) -> LoadedTls:
        """Load the files, changed or not, for `use`. Raises SettingError, also for an expired certificate where the one
        in use is valid."""
        try:
            loaded = await asyncio.to_thread(load_tls, self.config)
        except OSError as error:
            raise SettingError(str(error)) from error
        now_ms, ours_ms = self._clock.wall_ms(), self._loaded.expires_ms
        if loaded.expires_ms is not None and ours_ms is not None and loaded.expires_ms <= now_ms < ours_ms:
            raise SettingError("the certificate has expired already")
        return loaded

    def use(self, loaded: LoadedTls) -> None:
        """Use `loaded` for all later handshakes."""
        self._loaded = loaded
        self._failed = self._said_ms = None
        self.reloads += 1
        _log.info("changed certificates are in use", extra={"listener": self.config.name})

    def _look_at_expiry(self) -> None:
        """Log twice a day that the certificate expires soon or has expired, and once when it expires."""
        expires_ms, now_ms = self._loaded.expires_ms, self._clock.wall_ms()
        if expires_ms is None or expires_ms - now_ms > EXPIRY_WARNING_DAYS * DAY_MS:
            return
        said_ms = self._said_ms
        has_ended = expires_ms <= now_ms
        ended_since = has_ended and said_ms is not None and said_ms < expires_ms
        if said_ms is not None and now_ms - said_ms < EXPIRY_SAID_AGAIN_MS and not ended_since:
            return
        self._said_ms = now_ms
        if has_ended:
            _log.error("the certificate has expired: clients refuse it", extra={"listener": self.config.name})
        else:
            days = (expires_ms - now_ms) // DAY_MS
            _log.warning("the certificate expires soon", extra={"listener": self.config.name, "days": days})


def _state(config: TlsConfig) -> FileState:
    return state_of(path for path in (config.keystore_location, config.truststore_location) if path)


def load_tls(config: TlsConfig) -> LoadedTls:
    """Blocks for the disk, and for some milliseconds of CPU. Raises SettingError."""
    state = _state(config)  # before reading, so that files that change meanwhile are read again
    store = _text(config.keystore_location, config.keystore_certificate_chain, "ssl.keystore.location")
    certificates = "\n".join(_CERTIFICATES.findall(store))
    trusted = _text(config.truststore_location, config.truststore_certificates, "ssl.truststore.location")
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        _restrict(context, config)
        if store:
            _give_identity(context, config, store, certificates)
        if trusted:
            _give_trust(context, trusted)
    server.num_tickets = 0
    server.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_COMPRESSION
    if config.client_auth != "none" and not trusted:
        raise SettingError(
            f"ssl.client.auth: {config.client_auth} is not valid without ssl.truststore.location or "
            "ssl.truststore.certificates, by which clients' certificates are verified"
        )
    server.verify_mode = _CLIENT_AUTH[config.client_auth]
    client.check_hostname = config.endpoint_identification_algorithm == "https"
    client.verify_mode = ssl.CERT_REQUIRED
    return LoadedTls(server, client, _expiry_ms(certificates) if certificates else None, state)


def _text(path: str, given: str, setting: str) -> str:
    if not path:
        return given
    try:
        return read_pem(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(f"{setting}: {path}: {why}") from error


def _give_identity(context: ssl.SSLContext, config: TlsConfig, store: str, certificates: str) -> None:
    setting = "ssl.keystore.location" if config.keystore_location else "ssl.keystore.certificate.chain"
    key = private_key_in(store if config.keystore_location else config.keystore_key)
    if not certificates:
        raise SettingError(f"{setting}: there is no certificate in it")
    if key is None:
        raise SettingError(
            f"{setting}: there is no private key in it"
            if config.keystore_location
            else "ssl.keystore.key: it must hold the private key of ssl.keystore.certificate.chain as PEM text"
        )
    try:
        load_chain(context, certificates, key, config.key_password)
    except ssl.SSLError as error:
        why = error.reason or "the key or its password (ssl.key.password) does not fit"
        raise SettingError(f"{setting}: key and certificates do not load: {why}") from error


def _give_trust(context: ssl.SSLContext, trusted: str) -> None:
    try:
        context.load_verify_locations(cadata=trusted)
    except (ssl.SSLError, ValueError) as error:
        raise SettingError(f"ssl.truststore.location: its certificates do not load: {error}") from error


def _restrict(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Set versions and suites. Python's `ssl` cannot choose among the suites of TLS 1.3."""
    versions = set(config.enabled_protocols)
    newer, older = [s for s in config.cipher_suites if s in SUITES_OF_1_3], []
    if config.cipher_suites:
        older = [openssl_name(suite) for suite in config.cipher_suites if suite not in SUITES_OF_1_3]
        if newer and set(newer) != SUITES_OF_1_3:
            raise SettingError(f"ssl.cipher.suites: of TLS 1.3 name all or none of {', '.join(sorted(SUITES_OF_1_3))}")
        versions -= {"TLSv1.3"} if not newer else set()
        versions -= {"TLSv1.2"} if not older else set()
    if not versions:
        raise SettingError("ssl.cipher.suites: no version of ssl.enabled.protocols has one of these suites")
    context.minimum_version = min(VERSIONS[version] for version in versions)
    context.maximum_version = max(VERSIONS[version] for version in versions)
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError as error:
            raise SettingError(f"ssl.cipher.suites: none of {', '.join(older)} is known here") from error


def openssl_name(suite: str) -> str:
    """OpenSSL's name for the protocol's name of a TLS 1.2 suite; any other name unchanged.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 → ECDHE-RSA-AES128-GCM-SHA256.
    """
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).removesuffix("_SHA256" if "POLY1305" in cipher else "")
    name = f"{exchange}_{cipher}" if exchange != "RSA" else cipher
    return name.replace("_", "-").replace("-CBC-", "-")


def _expiry_ms(certificates: str) -> int:
    from cryptography import x509  # noqa: PLC0415  see tidelog.nodes.node_imports

    try:
        first = x509.load_pem_x509_certificate(certificates.encode())
    except ValueError as error:
        raise SettingError(f"ssl.keystore.location: a certificate that cannot be read: {error}") from error
    return int(first.not_valid_after_utc.timestamp() * 1000)


class SecuredNetwork:
    """The network of a node's links: connections that it makes use mutual TLS.

    Listeners secure the connections that they accept themselves (`wire.opening`).
    """

    def __init__(self, network: Network, contexts: TlsContexts) -> None:
        self._network = network
        self._contexts = contexts
        self.listen = network.listen

    async def connect(self, address: Address) -> Socket:
        """Raises OSError, also when the handshake fails. Needs a timeout."""
        plain = await self._network.connect(address)
        try:
            secured = plain.secure(self._contexts.client, server_side=False, server_hostname=address[0])
        except BaseException:
            plain.abort()
            raise
        try:
            while (wants := secured.handshake()) is not Wants.NOTHING:
                await _ready(secured, wants)
        except BaseException:
            secured.abort()
            raise
        return secured


async def _ready(socket: SecureSocket, wants: Wants) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    watch = socket.on_readable if wants is Wants.READ else socket.on_writable
    watch(settle)
    try:
        await ready
    finally:
        watch(None)


class CertificateWatch:
    """Refreshes several contexts every few seconds. `stop` is idempotent."""

    def __init__(self, contexts: list[TlsContexts], interval_s: float) -> None:
        self._contexts = list(dict.fromkeys(contexts))
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._contexts and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("certificates"))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for contexts in self._contexts:
                await contexts.refresh()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
