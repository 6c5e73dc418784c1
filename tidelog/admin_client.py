"""How administration reaches a cluster: a stock Kafka admin client on its bootstrap addresses."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.settings import SettingError
from tidelog.cluster_layout import load_layout
from tidelog.commands.cluster import DEFAULT_DATA
from tidelog.output import EXIT_USAGE, fail

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

REQUEST_TIMEOUT_MS = 30_000

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", help="Where the cluster is.", metavar="HOST:PORT,…", show_default=False)
]
Data = Annotated[Path, typer.Option("--data", help="Or the directory of an embedded cluster.", metavar="DIR")]


@contextlib.contextmanager
def admin_client(bootstrap: str | None, data: Path = DEFAULT_DATA) -> Iterator[KafkaAdminClient]:
    """A connected admin client; what goes wrong inside the block ends the command with one line."""
    from kafka.admin import KafkaAdminClient  # noqa: PLC0415
    from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError  # noqa: PLC0415

    if bootstrap is None:
        try:
            layout = load_layout(data)
        except SettingError as error:
            fail(str(error))
        if layout is None:
            fail(f"there is no cluster in {data}; name one with --data DIR or --bootstrap HOST:PORT", EXIT_USAGE)
        bootstrap = layout.bootstrap
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
        fail(str(error))
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
    from kafka.errors import for_code  # noqa: PLC0415

    if not row["error_code"]:
        return None
    kind = for_code(row["error_code"])
    message = row.get("error_message")
    return f"{kind.message}: {message}" if message else str(kind.message)
