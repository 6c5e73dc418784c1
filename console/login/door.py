"""Opens sessions: tries credentials on a listener, and connects a client with them. Blocking; runs in threads."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from common.errors import ErrorCode, MalformedFrame
from common.settings import SettingError
from console.access.trouble import EXPECTED, Trouble, trouble_of
from console.login.credentials import Entry, Reachable
from tidelog.admin.admin_client import Reach
from tidelog.admin.bootstrap_addresses import parse_bootstrap
from tidelog.admin.client_login import LibraryLogins
from tidelog.admin.command_config import MECHANISMS, parse_command_config
from tidelog.admin.library_client import AdminClient
from tidelog.admin.listener_probe import TIMEOUT_S, Refusal, ask, probe
from wire.messages import SaslHandshakeRequest

CLIENT_ID = "tidelog-console"
REQUEST_TIMEOUT_MS, BOOTSTRAP_TIMEOUT_MS = 10_000, 5_000


class Door(Protocol):
    """What the login page needs. Both block, and raise Trouble."""

    def offered(self) -> Sequence[str]: ...
    def enter(self, entry: Entry) -> AdminClient: ...


class _SessionClient(AdminClient):
    """Its credentials are dropped when it closes."""

    def __init__(self, closed: Callable[[], None], **options: Any) -> None:
        self._when_closed = closed
        super().__init__(**options)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._when_closed()


class ClusterDoor:
    """To a real cluster. Every client has the console's id, so that operators can give it a quota."""

    def __init__(self, where: Reachable, logins: LibraryLogins) -> None:
        self._where = where
        self._logins = logins

    def offered(self) -> Sequence[str]:
        """The SASL mechanisms of the listener; none if it asks for no SASL login. Raises Trouble."""
        if not self._where.protocol.startswith("SASL_"):
            return ()
        context = parse_command_config(
            {name: value for name, value in self._where.properties.items() if not name.startswith("sasl.")}
            | {"security.protocol": self._where.protocol.removeprefix("SASL_")}
        ).context
        last: Exception | None = None
        for address in _addresses(self._where.bootstrap):
            try:
                with contextlib.closing(socket.create_connection(address, TIMEOUT_S)) as plain:
                    secured = plain if context is None else context.wrap_socket(plain, server_hostname=address[0])
                    with secured:
                        answer = ask(secured, SaslHandshakeRequest(mechanism="?"), 1)
                if answer.error_code in (0, ErrorCode.UNSUPPORTED_SASL_MECHANISM):
                    return [one for one in answer.mechanisms if one in MECHANISMS]
            except (OSError, EOFError, MalformedFrame) as error:
                last = error
        raise Trouble(f"no broker answers at {self._where.bootstrap}: {last or 'it takes no login'}", is_passing=True)

    def enter(self, entry: Entry) -> AdminClient:
        """A connected client. Raises Trouble, with why the listener refuses it."""
        try:
            probe(entry.bootstrap, entry.security)
        except Refusal as error:
            raise Trouble(str(error)) from None
        reach = Reach(entry.bootstrap, entry.security)
        options = reach.options() | {"client_id": CLIENT_ID}
        login = entry.security.login
        number = "" if login is None else self._logins.keep(login)
        try:
            return _SessionClient(
                lambda: self._logins.forget(number),
                **options,
                sasl_plain_username=number,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            )
        except EXPECTED as error:
            self._logins.forget(number)
            raise trouble_of(error) from None


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    try:
        return parse_bootstrap(bootstrap)
    except SettingError as error:
        raise Trouble(str(error)) from None
