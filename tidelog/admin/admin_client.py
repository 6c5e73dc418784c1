"""Connects commands to a cluster: a stock Kafka admin client on its bootstrap addresses."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import ErrorCode, error_name
from common.settings import SettingError
from tidelog.admin.bootstrap_addresses import parse_bootstrap
from tidelog.cluster.client_files import JAVA, TENANTS_DIRECTORY
from tidelog.cluster.embedded_place import DEFAULT_DATA, HOST
from tidelog.output import EXIT_USAGE, Json, fail

if TYPE_CHECKING:
    from tidelog.admin.command_config import ClientSecurity
    from tidelog.admin.library_client import AdminClient

CLIENT_ID = "tidelog"
REQUEST_TIMEOUT_MS, BOOTSTRAP_TIMEOUT_MS = 30_000, 5_000
_NUMBERED = re.compile(r"\[Error (-?\d+)\] \w+(?:: (.*))?", re.DOTALL)

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Addresses of brokers.", metavar="HOST:PORT,…", show_default=False)
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", help="TLS and SASL properties, as for Kafka's tools.", metavar="FILE"),
]
Data = Annotated[Path, typer.Option("--data", help="Or the directory of an embedded cluster.", metavar="DIR")]


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The cluster that a command uses: at `bootstrap`, or the embedded one in `data`."""

    bootstrap: Bootstrap = None
    command_config: CommandConfig = None
    data: Data = DEFAULT_DATA


Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        help="As this tenant: its client properties, a file or the name of one in DIR/tenants.",
        metavar="NAME|FILE",
    ),
]


@dataclass(frozen=True, slots=True)
class ClientOptions(ClusterOptions):
    """The same for a command that does what applications do, maybe as a tenant."""

    tenant: Tenant = None

    def cluster(self) -> ClusterOptions:
        """With the addresses and the properties of the tenant. Ends the command if there is no such file."""
        if self.tenant is None:
            return self
        from tidelog.admin.command_config import read_bootstrap  # noqa: PLC0415

        path = Path(self.tenant)
        if "/" not in self.tenant and not path.is_file():
            path = self.data / TENANTS_DIRECTORY / f"{self.tenant}.{JAVA}"
        try:
            return ClusterOptions(self.bootstrap or read_bootstrap(path), path, self.data)
        except SettingError as error:
            fail(f"--tenant: {error}")


@dataclass(frozen=True, slots=True)
class CommandOptions(ClusterOptions):
    """The same, and the format of the output."""

    as_json: Json = False


@dataclass(frozen=True, slots=True)
class Reach:
    """A cluster's addresses and the security settings to reach it."""

    bootstrap: str
    security: ClientSecurity

    def options(self) -> dict[str, Any]:
        """Options for any client of the library, without the secret, which is requested at login."""
        login, context = self.security.login, self.security.context
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "client_id": CLIENT_ID,
            "security_protocol": self.security.protocol,
            "sasl_mechanism": login.mechanism if login is not None else None,
            "ssl_context": context,
        }


def reach(cluster: ClusterOptions, *, without: int | None = None) -> Reach:
    """The given addresses, or those of the embedded cluster, optionally without one broker.

    Ends the command if there is no cluster, or if a listener rejects this client.
    """
    from tidelog.admin.command_config import ClientSecurity, read_command_config  # noqa: PLC0415
    from tidelog.cluster.layout import load_layout  # noqa: PLC0415  with every setting of nodes

    bootstrap, command_config, data = cluster.bootstrap, cluster.command_config, cluster.data
    try:
        security = read_command_config(command_config) if command_config is not None else ClientSecurity()
        layout = load_layout(data) if bootstrap is None else None
    except SettingError as error:
        fail(str(error))
    if bootstrap is None:
        if layout is None:
            fail(f"there is no cluster in {data}; name one with --data DIR or --bootstrap HOST:PORT", EXIT_USAGE)
        asked = [node for node in layout.brokers if node.node_id != without]
        if security.has_tls and not layout.tls:
            fail(f"the cluster in {data} has no listener with TLS; tidelog up --tls gives it one")
        bootstrap = ",".join(f"localhost:{n.tls_port}" if security.has_tls else f"{HOST}:{n.port}" for n in asked)
    else:
        try:
            parse_bootstrap(bootstrap)
        except SettingError as error:
            fail(f"--bootstrap: {error}", EXIT_USAGE)
    if command_config is not None:
        from tidelog.admin.client_login import use_in_library  # noqa: PLC0415
        from tidelog.admin.listener_probe import Refusal, probe  # noqa: PLC0415

        try:
            probe(bootstrap, security)
        except Refusal as error:
            fail(str(error))
        if security.login is not None:
            use_in_library(security.login)
    return Reach(bootstrap, security)


@contextlib.contextmanager
def admin_client(cluster: ClusterOptions, *, without: int | None = None) -> Iterator[AdminClient]:
    """As `client_of`, with a command's options."""
    with client_of(reach(cluster, without=without)) as client:
        yield client


@contextlib.contextmanager
def client_of(where: Reach) -> Iterator[AdminClient]:
    """A connected admin client; an error inside the block ends the command with one line."""
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError  # noqa: PLC0415

    from tidelog.admin.library_client import AdminClient  # noqa: PLC0415

    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client = None
    try:
        client = AdminClient(
            **where.options(), request_timeout_ms=REQUEST_TIMEOUT_MS, bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS
        )
        yield client
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        fail(_unreached(where) or f"no broker answers at {where.bootstrap}: {error}")
    except KafkaError as error:
        fail(outcome_text(str(error)))
    finally:
        if client is not None:
            with contextlib.suppress(KafkaError, OSError):
                client.close()


def _unreached(where: Reach) -> str | None:
    """Why a listener rejects this client, if there is a listener."""
    from tidelog.admin.listener_probe import Absent, Refusal, Silent, probe  # noqa: PLC0415

    try:
        probe(where.bootstrap, where.security)
    except Silent as error:
        return str(error)
    except Absent:
        return None
    except Refusal as error:
        return f"{error}; see --command-config"
    return None


def error_text(row: dict[str, Any]) -> str | None:
    """The error in a row of a response, None if there is none."""
    if not row["error_code"]:
        return None
    return _in_words(row["error_code"], row.get("error_message"))


def topic_error_text(name: str, row: dict[str, Any]) -> str | None:
    """The error of the topic `name` in a response, None if there is none."""
    if row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"there is no topic {name}"
    problem = error_text(row)
    return problem and f"{name}: {problem}"


def outcome_text(outcome: str) -> str:
    """The protocol's error for a client's exception: the library identifies some by class, others by an error
    number."""
    from kafka import errors  # noqa: PLC0415

    numbered = _NUMBERED.fullmatch(outcome)
    if numbered is not None:
        message = numbered[2]
        return _in_words(int(numbered[1]), message if message != "None" else None)
    number = getattr(getattr(errors, outcome, None), "errno", None)
    return _in_words(number, None) if isinstance(number, int) else outcome


def outcome_code(outcome: str) -> int:
    """The error number of a client's exception; that of UNKNOWN_SERVER_ERROR if the library gives none."""
    numbered = _NUMBERED.fullmatch(outcome)
    return int(numbered[1]) if numbered is not None else ErrorCode.UNKNOWN_SERVER_ERROR


def _in_words(code: int, message: str | None) -> str:
    """An error's protocol name with a sentence: the broker's, or the protocol's own if it sent none."""
    from kafka import errors  # noqa: PLC0415

    name = error_name(code)
    if not message:
        message = _SENTENCES.get(name)
    if not message and name == errors.for_code(code).message:
        message = errors.for_code(code).description
    return f"{name}: {message}" if message else name


_SENTENCES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name: "The topic or partition does not exist.",
    ErrorCode.NON_EMPTY_GROUP.name: "The group still has members.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE.name: "No broker coordinates it now, or its coordinator cannot write.",
}
"""Replacements for the protocol's messages that speak of one broker or of a request's details."""
