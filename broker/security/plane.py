"""Access control of one broker: the principals of its connections, and their rights.

The frames of a connection to a SASL listener go to its login until it has authenticated. Principals: `User:<name>`; of
an API key `User:<tenant>_<key>`. When a key or a tenant is deleted, its connections close at once; when a user is
deleted, its sessions end when they expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.security.authorizer import Access, Authorizer, AuthorizerConfig
from broker.security.config import SecurityConfig
from broker.security.connection_rates import ConnectionLimits, ConnectionRates, WholeLimits
from broker.security.credentials import Credentials
from broker.security.decoy_verifiers import DecoyVerifiers
from broker.security.exchange import OAUTHBEARER, PLAIN, SCRAM_SHA_256, Authenticated, Exchange
from broker.security.login import Login
from broker.security.moved_tenants import MovedTenants
from broker.security.oauth import KeySet, OauthExchange
from broker.security.plain import PlainExchange
from broker.security.scram import NONCE_BYTES, ScramExchange
from broker.security.session import ClientSession
from broker.security.usage import UsageBook
from broker.security.verifications import Verifications
from common.host_names import parse_host
from common.metrics import Metrics
from common.ports import Ports
from kraft.image.cells import cell_of
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import CONNECTIONS_MAX
from kraft.records import ScramMechanism
from wire.connection import Connection, FrameHandler
from wire.failure_log import FailureLog
from wire.listeners import ListenerConfig, ListenerKind

logger = logging.getLogger(__name__)

NO_TENANT = ""  # for a connection to a tenants' listener that names no tenant: it has no keys


class FrameHandlers(NamedTuple):
    """The receivers of a connection's frames: `shut` before authentication and after the session has expired."""

    open: FrameHandler
    shut: FrameHandler


class Security:
    """Created while the event loop runs."""

    def __init__(
        self,
        config: SecurityConfig,
        ports: Ports,
        image: Callable[[], MetadataImage],
        secret: bytes,
        frame_bytes_max: int,
        broker_id: int = -1,
        usage: UsageBook | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """`usage` is where clients' use is counted. `limits`: this broker's part of tenants' limits, all by default."""
        self._limits = WholeLimits() if limits is None else limits
        self.usage = UsageBook() if usage is None else usage
        self.config = config
        self.image = image
        self.decoys = DecoyVerifiers(secret)
        self.ports = ports
        self.frame_bytes_max = frame_bytes_max
        self.authorizer = Authorizer(config.authorizer or AuthorizerConfig())
        now = ports.clock.monotonic
        self.verifications = Verifications(config.at_once_max, config.queue_max, config.per_address_max, now)
        self.key_set = KeySet(config, ports.clock)
        self.failures = FailureLog(logger, "authentication failed", now)
        self.rates = ConnectionRates(
            image, now, config.address_connection_rate, config.tenant_connection_rate, self._limits
        )
        self._broker_id = broker_id
        self.moved_tenants = MovedTenants(image, broker_id, self._close_left_behind)
        self.authenticated = 0  # successful exchanges since the start
        self._logins: dict[str, dict[Login, None]] = {}  # by user
        self._of_tenant: dict[str, dict[Login, None]] = {}

    # connections -------------------------------------------------------------------------------------------

    def greet(self, connection: Connection, session: ClientSession, handlers: FrameHandlers) -> None:
        """Set up a new connection. Without authentication it has its rights from the start."""
        listener = connection.listener
        if listener is None or listener.kind is ListenerKind.INTERNAL:
            return
        self.rates.connected(session)
        if not listener.protocol.uses_sasl:
            if listener.kind is ListenerKind.TENANT:
                connection.close("tenants authenticate")
            else:
                access = self.rights(session.principal, session.client_host, None)
                session.belong_to(session.principal, None, access)
                self.usage.operators.attempted()
                session.grant(self.usage.operators)
            return
        door = _Door(self, connection, listener, handlers)
        if door.tenant is None or door.tenant in self.image().tenants:  # others could be any number of names
            self.usage.of(door.tenant).attempted()
        login = Login(session, door)
        session.begin_login(login)
        door.shut(login)

    def rights(self, principal: str, host: str, tenant: str | None) -> Access | None:
        """The rights of a principal; None if everything is allowed."""
        if self.config.authorizer is None and tenant is None:
            return None
        return self.authorizer.access(principal, host, tenant)

    def enter(self, login: Login, user: str, principal: str, tenant: str | None) -> str:
        """The connection now belongs to this user. Returns "", or why not: its tenant has too many connections."""
        session, is_new = login.session, not login.user
        if is_new and tenant is not None:
            count = len(self._of_tenant.get(tenant, ()))
            image = self.image().tenants.get(tenant)
            limits = image.limits if image is not None else {}
            most = limits.get(CONNECTIONS_MAX, self.config.tenant_connections_max)
            if count >= (most if image is None else self._limits.connections_here(image, most)):
                return "too many connections of the tenant"
            self._of_tenant.setdefault(tenant, {})[login] = None
            self.moved_tenants.look(tenant)
        session.belong_to(principal, tenant, self.rights(principal, session.client_host, tenant))
        session.grant(self.usage.of(tenant))
        if is_new:
            self._logins.setdefault(user, {})[login] = None
            self.rates.logged_in(session)
        self.authenticated += 1
        return ""

    def leave(self, login: Login) -> None:
        if not login.user:
            return
        logins = self._logins.get(login.user, {})
        logins.pop(login, None)
        if not logins:
            self._logins.pop(login.user, None)
        tenant = login.session.tenant
        if tenant is not None:
            own = self._of_tenant[tenant]
            del own[login]
            if not own:
                del self._of_tenant[tenant]
                self.moved_tenants.forget(tenant)

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply ACLs, and close the connections of deleted keys and tenants."""
        self.decoys.metadata_changed(delta, image)
        self.authorizer.follow(image.acls)
        access = delta.access
        for key, before in access.keys.changed.items():
            if before is not None and key in self._logins:
                known = image.keys.get(key)
                tenant_now = image.tenants.get(known.tenant) if known is not None else None
                if tenant_now is None or not tenant_now.may_log_in:
                    self._revoke(self._logins[key])
        for tenant in access.tenants.changed:
            if tenant in self._of_tenant:
                now = image.tenants.get(tenant)
                if now is None or not now.may_log_in:
                    self._revoke(self._of_tenant[tenant])
        for tenant in list(self._of_tenant) if self._is_in_another_cell(delta, image) else access.tenants.changed:
            if tenant in self._of_tenant:
                self.moved_tenants.look(tenant)
        for tenant in access.tenants.changed:
            if tenant not in image.tenants:  # its connections are closed
                self.usage.forget(tenant)

    def _revoke(self, logins: dict[Login, None]) -> None:
        for login in list(logins):
            self.failures.report("key revoked", login.session.client_host, listener=login.session.listener)
            login.session.connection.close()

    def _is_in_another_cell(self, delta: MetadataDelta, image: MetadataImage) -> bool:
        """Whether this broker is in another cell than before the delta."""
        if self._broker_id not in delta.brokers_changed:
            return False
        before, now = delta.brokers_changed[self._broker_id], image.brokers.get(self._broker_id)
        return now is not None and (before is None or cell_of(before) != cell_of(now))

    def _close_left_behind(self, tenant: str) -> None:
        left = list(self._of_tenant.get(tenant, ()))
        logger.info("connections of a tenant of another cell closed", extra={"tenant": tenant, "count": len(left)})
        for login in left:
            login.session.connection.close_after_flush()

    def register(self, metrics: Metrics) -> None:
        self.rates.register(metrics)
        metrics.family(
            "tidelog_authentication_failures_total",
            lambda: [({"cause": cause}, float(count)) for cause, count in self.failures.counts.items()],
        )
        metrics.counter("tidelog_authentications_total", lambda: self.authenticated)
        metrics.gauge("tidelog_authentications_queued", lambda: self.verifications.queued)


class _Door:
    """The broker as one connection's login uses it."""

    def __init__(
        self, security: Security, connection: Connection, listener: ListenerConfig, handlers: FrameHandlers
    ) -> None:
        config = security.config
        name = listener.name
        offered: Sequence[str] = config.mechanisms_of.get(name, config.mechanisms)
        self.tenant: str | None = None
        if listener.kind is ListenerKind.TENANT:
            offered = [mechanism for mechanism in offered if mechanism != OAUTHBEARER]  # keys are no tokens
            server_name = connection.identity.server_name if connection.identity is not None else None
            host = parse_host(server_name or "", config.tenant_domain)
            self.tenant = NO_TENANT if host is None else host.tenant
        self.mechanisms = offered
        self.max_reauth_ms = config.max_reauth_ms_of.get(name, config.max_reauth_ms)
        self.failed_delay_s = config.failed_delay_ms / 1000
        self.authentication_s = config.authentication_ms / 1000
        self.reauthentication_s = config.reauthentication_s
        self._security = security
        self._connection = connection
        self._handlers = handlers
        self._listener = name
        self._credentials: Credentials | None = None  # of the exchange under way
        self._ip = connection.identity.client_address[0] if connection.identity is not None else connection.peer[0]

    def exchange(self, mechanism: str) -> Exchange:
        security = self._security
        self._credentials = None
        if mechanism == OAUTHBEARER:
            return OauthExchange(security.config, security.key_set)
        credentials = self._credentials = Credentials(security.image, security.decoys, self.tenant)
        if mechanism == PLAIN:
            return PlainExchange(credentials)
        kind = ScramMechanism.SHA_256 if mechanism == SCRAM_SHA_256 else ScramMechanism.SHA_512
        return ScramExchange(kind, credentials.scram, security.ports.random.randbytes(NONCE_BYTES))

    async def verify(self, work: Callable[[], Authenticated]) -> Authenticated:
        return await self._security.verifications.run(self._ip, work)

    def principal(self, user: str) -> str:
        return f"User:{user}" if self.tenant is None else f"User:{self.tenant}_{user}"

    def admit(self, login: Login, user: str) -> str:
        if self._credentials is not None and not self._credentials.holds(user):
            return "revoked meanwhile"
        refusal = self._security.enter(login, user, self.principal(user), self.tenant)
        if not refusal:
            self._connection.hand_to(self._handlers.open, self._security.frame_bytes_max)
        return refusal

    def shut(self, login: Login) -> None:
        self._connection.hand_to(self._handlers.shut, self._security.config.max_receive_size)

    def failed(self, cause: str, mechanism: str) -> None:
        named = {"mechanism": mechanism} if mechanism else {}
        self._security.failures.report(cause, self._ip, listener=self._listener, **named)

    def gone(self, login: Login) -> None:
        self._security.leave(login)

    def now_ms(self) -> int:
        return self._security.ports.clock.wall_ms()
