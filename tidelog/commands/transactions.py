"""`tidelog transactions list | describe | doctor | abort`. docs/transactions.md says what to do about each finding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.open_transactions import abort_in, examined, hanging_in
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_admin import Fenced, UnknownPattern, UnknownState, clients_of, described, fence, listed
from tidelog.admin.transaction_doctor import Class, Examined, Finding, Place, Unanswered, reasons
from tidelog.command_group import CommandGroup
from tidelog.moments import utc
from tidelog.output import EXIT_USAGE, fail, printable, remark, show, show_one

app = CommandGroup("Transactions: list, describe, doctor, abort.")
if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

T = TypeVar("T")
ID_BYTES_MAX = 2**15 - 1  # of a string in Kafka's protocol
COLUMNS = [
    "class", "transactional_id", "state", "producer_id", "epoch", "client_id", "client_host", "age_s", "timeout_s",
    "partitions", "waits_for", "records_behind", "tier_bytes",
]  # fmt: skip


@app.command("list")
def list_transactions(
    state: Annotated[list[str] | None, typer.Option(help="Only in this state, such as Ongoing.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Only ids that match this RE2 expression as a whole.")] = None,
    longer_than_s: Annotated[float | None, typer.Option(min=0, max=2**31, help="Only open for longer.")] = None,
    *,
    options: CommandOptions,
) -> None:
    """The transactional ids that coordinators know."""
    longer_ms = -1 if longer_than_s is None else int(longer_than_s * 1000)
    with admin_client(options) as client:
        rows = _or_fail(lambda: listed(client, state or (), pattern, longer_ms))
    columns = ["transactional_id", "state", "producer_id", "coordinator"]
    show([row._asdict() for row in rows], as_json=options.as_json, columns=columns, empty="no transactional ids")


@app.command()
def describe(transactional_id: str, options: CommandOptions) -> None:
    """One transactional id: its state, its producer, and the partitions whose end marker is not written yet."""
    _check_id(transactional_id)
    with admin_client(options) as client:
        row = _or_fail(lambda: described(client, transactional_id))
        producer = _or_fail(lambda: clients_of(client, [(transactional_id, row.coordinator)])).get(transactional_id)
    shown = {
        "transactional_id": row.transactional_id,
        "state": row.state,
        "coordinator": row.coordinator,
        "producer_id": row.producer_id,
        "epoch": row.producer_epoch,
        "client_id": producer and producer.client_id,
        "client_host": producer and producer.host,
        "timeout_s": row.timeout_ms / 1000,
        "started": utc(row.started_ms) if row.started_ms >= 0 else None,
        "partitions": [str(place) for place in sorted(row.partitions)],
    }
    show_one(shown, as_json=options.as_json)


@app.command()
def doctor(
    topic: Annotated[list[str] | None, typer.Option(help="Only what is open in this topic.")] = None,
    *,
    options: CommandOptions,
) -> None:
    """Every open transaction, with why it is open and what it holds back.

    young: within its timeout, or so little past it that its coordinator may not have looked yet. past its timeout: its
    coordinator should have ended it. prepared: decided, and a marker cannot be written where it waits for. unknown:
    open in a partition, and what it waits for does not say whether it knows it. hanging: open in a partition, and
    unknown to every coordinator.

    Exits with 1 if something has not answered, after the list.
    """
    from tidelog.tier.access import blocked_bytes  # noqa: PLC0415

    with admin_client(options) as client:
        found = _or_fail(lambda: examined(client, topic, lambda: blocked_bytes(client)))
    show_open(found, as_json=options.as_json)


@app.command()
def abort(
    transactional_id: Annotated[str | None, typer.Argument(help="Through its coordinator.", show_default=False)] = None,
    topic: Annotated[str | None, typer.Option(help="Or a hanging one in this topic, …")] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="… this partition …")] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="… and of this producer.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    *,
    options: CommandOptions,
) -> None:
    """End an open transaction without its records. Its producer must begin again."""
    by_marker = (topic, partition, producer_id)
    given = [value for value in by_marker if value is not None]
    if transactional_id is not None:
        _check_id(transactional_id)
    if transactional_id is not None and given:
        fail("name a TRANSACTIONAL_ID, or --topic, --partition and --producer-id, not both", EXIT_USAGE)
    if transactional_id is None and len(given) < len(by_marker):
        fail("name a TRANSACTIONAL_ID, or all of --topic, --partition and --producer-id", EXIT_USAGE)
    with admin_client(options) as client:
        if transactional_id is not None:
            done = abort_known(client, transactional_id, dry_run=dry_run)
        else:
            opened = _or_fail(lambda: hanging_in(client, Place(topic or "", partition or 0), producer_id or 0))
            done = f"the transaction of producer {producer_id} in {opened.place}, by a marker"
            if not dry_run:
                _or_fail(lambda: abort_in(client, opened))
    show_aborted(done, dry_run=dry_run, as_json=options.as_json)


def show_open(found: Examined, *, as_json: bool) -> None:
    """Open transactions, and on standard error what is not known, which may end the command."""
    unanswered = found.unanswered
    empty = "no transaction is known to be open" if unanswered else "no transaction is open"
    show([_row(one, unanswered) for one in found.found], as_json=as_json, columns=COLUMNS, empty=empty)
    if found.tier_unknown:
        remark(f"tier bytes are not known: {found.tier_unknown}")
    if unanswered:
        fail("not all is known, something has not answered:", details=reasons(unanswered))


def show_aborted(done: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_one({"would_abort" if dry_run else "aborted": done, "dry_run": dry_run}, as_json=True)
    else:
        print(printable(f"{'would abort' if dry_run else 'aborted'} {done}"))


def _check_id(transactional_id: str) -> None:
    size = len(transactional_id.encode())
    if not 1 <= size <= ID_BYTES_MAX:
        fail(f"a TRANSACTIONAL_ID has 1 to {ID_BYTES_MAX} bytes, this one has {size}", EXIT_USAGE)


def abort_known(client: AdminClient, transactional_id: str, *, dry_run: bool) -> str:
    """What was aborted, or the end of the command."""
    row = _or_fail(lambda: described(client, transactional_id))
    if row.state != "Ongoing":
        fail(f"{transactional_id} has no transaction to abort, its state is {row.state}")
    if not dry_run and (outcome := _or_fail(lambda: fence(client, transactional_id))) is not Fenced.ABORTED:
        fail(f"{transactional_id}: {outcome.value}")
    return f"{transactional_id}, which broker {row.coordinator} coordinates"


def _row(one: Finding, unanswered: Iterable[Unanswered]) -> dict[str, Any]:
    waits_for = [row.who for row in unanswered] if one.kind is Class.UNKNOWN else list(map(str, one.waits_for))
    return {
        "class": one.kind.value,
        "transactional_id": one.transactional_id or None,
        "state": one.state or None,
        "producer_id": one.producer_id,
        "epoch": one.producer_epoch,
        "client_id": one.client and one.client.client_id,
        "client_host": one.client and one.client.host,
        "age_s": one.age_ms // 1000,
        "timeout_s": None if one.timeout_ms is None else one.timeout_ms // 1000,
        "partitions": [str(place) for place in one.places],
        "waits_for": waits_for,
        "records_behind": one.records_behind,
        "tier_bytes": one.tier_bytes,
        "coordinator": None if one.coordinator < 0 else one.coordinator,
    }


def _or_fail(ask: Callable[[], T]) -> T:
    """Its result, or the end of the command with what the cluster said."""
    try:
        return ask()
    except UnknownState as error:
        fail(f"--state: {error}", EXIT_USAGE)
    except UnknownPattern as error:
        fail(f"--pattern: {error}", EXIT_USAGE)
    except Refused as error:
        fail(str(error))
