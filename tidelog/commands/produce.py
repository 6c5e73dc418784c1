"""`tidelog produce TOPIC`: standard input becomes records. docs/records.md shows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.admin.admin_client import ClientOptions, outcome_text
from tidelog.admin.name_completion import topic_names
from tidelog.output import EXIT_USAGE, fail, is_terminal, needed
from tidelog.text_values import AnyBytes

if TYPE_CHECKING:
    from tidelog.streams.interruption import Interruption
    from tidelog.streams.line_source import LineSource
    from tidelog.streams.production import Production
    from tidelog.streams.progress import Progress
    from tidelog.streams.record_lines import Outgoing, Parse

ACKS = {"all": -1, "1": 1, "0": 0}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INTERRUPTED = 128


def produce(
    topic: Annotated[str, typer.Argument(autocompletion=topic_names)],
    as_json: Annotated[bool, typer.Option("--json", help="A line is an object with key, value, headers, …")] = False,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", help="A line is a key, this text, and a value.", metavar="TEXT"),
        AnyBytes,
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="A header of every record.", metavar="NAME=VALUE"), AnyBytes
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Of all records that name none; else by their keys.")] = None,
    compression: Annotated[str, typer.Option(help=f"{', '.join(CODECS)}.")] = "none",
    acks: Annotated[str, typer.Option(help="all, 1 or 0 replicas that have a record before it counts.")] = "all",
    transaction: Annotated[
        bool, typer.Option("--transaction", help="All of the input in one transaction, or nothing of it.")
    ] = False,
    commit_every: Annotated[
        int | None, typer.Option("--commit-every", min=1, help="A transaction for each so many records.", metavar="N")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", help="Of the transactions; a new one.", metavar="ID")
    ] = None,
    transaction_timeout_s: Annotated[
        float, typer.Option(min=1, max=86_400, help="After which the cluster aborts a transaction.")
    ] = 60.0,
    rate: Annotated[float, typer.Option(min=0, max=10**9, help="Records a second at most; 0 is without bound.")] = 0.0,
    *,
    options: ClientOptions,
) -> None:
    """Send each line of standard input to a topic as a record.

    A line that is no record ends it: the lines before are sent, and in a transaction nothing is.
    """
    if acks not in ACKS or compression not in CODECS:
        fail(f"--acks is one of {', '.join(ACKS)}, --compression one of {', '.join(CODECS)}", EXIT_USAGE)
    if as_json and key_separator is not None:
        fail("--json has keys of its own: leave --key-separator out", EXIT_USAGE)
    if key_separator == "":
        fail("--key-separator: it must not be empty", EXIT_USAGE)
    if transactional_id == "":
        fail("--transactional-id: it must not be empty", EXIT_USAGE)
    in_transactions = transaction or commit_every is not None or transactional_id is not None
    if in_transactions and acks != "all":
        fail("transactions need --acks all", EXIT_USAGE)
    lines = needed(sys.stdin, "standard input")
    parse = _parse(as_json, key_separator, header or [], partition)
    from tidelog.streams.interruption import Interruption  # noqa: PLC0415
    from tidelog.streams.line_source import LineSource  # noqa: PLC0415
    from tidelog.streams.production import Production, monotonic_pace  # noqa: PLC0415
    from tidelog.streams.progress import Progress  # noqa: PLC0415
    from tidelog.streams.topic_clients import new_transactional_id, producer_of, topic_of  # noqa: PLC0415

    own_id = (transactional_id or new_transactional_id()) if in_transactions else None
    with topic_of(options, topic) as (where, partitions), Interruption() as interruption:
        if partition is not None and partition not in partitions:
            fail(f"--partition {partition}: {topic} has {len(partitions)} partitions")
        codec = None if compression == "none" else compression
        with producer_of(
            where, acks=ACKS[acks], compression=codec, transactional_id=own_id, transaction_s=transaction_timeout_s
        ) as producer:
            if is_terminal(sys.stdin):
                print("one record a line, Ctrl-D ends", file=sys.stderr)
            size = None if own_id is None else commit_every or 0
            production = Production(producer, topic, monotonic_pace(rate, interruption.pause), size)
            progress = Progress("sent", sys.stderr if is_terminal(sys.stderr) and not is_terminal(sys.stdin) else None)
            source = LineSource(lines.fileno(), interruption)
            send_all(source, parse, len(partitions), production, progress, interruption)


def _parse(as_json: bool, separator: str | None, headers: list[str], partition: int | None) -> Parse:
    """How lines are read, with what the options say of every record."""
    from tidelog.streams.record_lines import BadLine, header_option, json_line, text_lines  # noqa: PLC0415

    read = json_line if as_json else text_lines(separator.encode(errors="surrogateescape") if separator else None)
    try:
        common = tuple(header_option(text) for text in headers)
    except BadLine as error:
        fail(f"--header: {error}", EXIT_USAGE)
    if not common and partition is None:
        return read

    def parse(line: bytes) -> Outgoing | None:
        record = read(line)
        if record is None:
            return None
        place = partition if record.partition is None else record.partition
        return record._replace(headers=(*record.headers, *common), partition=place)

    return parse


def send_all(
    source: LineSource,
    parse: Parse,
    partitions: int,
    production: Production,
    progress: Progress,
    interruption: Interruption,
) -> None:
    """Ends the command at the first line that is no record, and at the first record that is not acknowledged."""
    from kafka.errors import KafkaError  # noqa: PLC0415

    from tidelog.streams.production import FLUSH_S, Undelivered  # noqa: PLC0415
    from tidelog.streams.record_lines import BadLine  # noqa: PLC0415

    try:
        for line in source:
            record = parse(line)
            if record is None:
                continue
            if record.partition is not None and record.partition >= partitions:
                raise BadLine(f"partition {record.partition}: the topic has {partitions}")
            production.send(record, source.number)
            progress.add(1, record.size)
            progress.show()
            if interruption.asked:
                break
        if not interruption.asked:
            production.finish(FLUSH_S)
            progress.end()
            return
    except BadLine as error:
        problem = f"line {source.number}: {error}"
    except Undelivered as error:
        problem = f"line {error.line}: {outcome_text(str(error.error))}"
    except KafkaError as error:
        problem = f"line {source.number}: {outcome_text(str(error))}"
    else:
        production.give_up(FLUSH_S)
        progress.end()
        fail(f"interrupted; {production.outcome()}", INTERRUPTED + interruption.number)
    production.give_up(FLUSH_S)
    fail(f"{problem}; {production.outcome()}")
