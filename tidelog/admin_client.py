"""How administration reaches a cluster: a stock Kafka admin client on its bootstrap addresses."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import error_name
from common.settings import SettingError
from tidelog.cluster_layout import load_layout
from tidelog.commands.cluster import DEFAULT_DATA
from tidelog.output import EXIT_USAGE, fail

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

REQUEST_TIMEOUT_MS = 30_000
_NUMBERED = re.compile(r"\[Error (-?\d+)\] \w+(?:: (.*))?", re.DOTALL)

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Where the cluster is.", metavar="HOST:PORT,…", show_default=False)
]
Data = Annotated[Path, typer.Option("--data", help="Or the directory of an embedded cluster.", metavar="DIR")]


def bootstrap_of(bootstrap: str | None, data: Path) -> str:
    """As it was given, or that of the cluster in `data`; ends the command when there is none."""
    if bootstrap is not None:
        return bootstrap
    try:
        layout = load_layout(data)
    except SettingError as error:
        fail(str(error))
    if layout is None:
        fail(f"there is no cluster in {data}; name one with --data DIR or --bootstrap HOST:PORT", EXIT_USAGE)
    return layout.bootstrap


@contextlib.contextmanager
def admin_client(bootstrap: str | None, data: Path = DEFAULT_DATA) -> Iterator[KafkaAdminClient]:
    """A connected admin client; what goes wrong inside the block ends the command with one line."""
    from kafka.admin import KafkaAdminClient  # noqa: PLC0415
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError  # noqa: PLC0415

    bootstrap = bootstrap_of(bootstrap, data)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    client = None
    try:
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap.split(","),
            client_id="tidelog",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            bootstrap_timeout_ms=5_000,
        )
        yield client
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        fail(f"no broker answers at {bootstrap}: {error}")
    except KafkaError as error:
        fail(outcome_text(str(error)))
    finally:
        if client is not None:
            with contextlib.suppress(KafkaError, OSError):
                client.close()


def send(client: KafkaAdminClient, request: Any, broker: int | None = None) -> Any:
    """The response to a request of `wire.messages`, from any broker or that one: for what the client has no method
    for."""
    return client._manager.run(client._manager.send, request, broker)


def error_text(row: dict[str, Any]) -> str | None:
    """What a reply's row says of its failure, None when there is none."""
    if not row["error_code"]:
        return None
    name, message = error_name(row["error_code"]), row.get("error_message")
    return f"{name}: {message}" if message else name


def outcome_text(outcome: str) -> str:
    """What the client's own words for a failure say in the protocol's: it tells some by a class's name, others by an
    error with its number."""
    from kafka import errors  # noqa: PLC0415

    numbered = _NUMBERED.fullmatch(outcome)
    if numbered is not None:
        name, message = error_name(int(numbered[1])), numbered[2]
        return f"{name}: {message}" if message and message != "None" else name
    number = getattr(getattr(errors, outcome, None), "errno", None)
    return error_name(number) if isinstance(number, int) else outcome
