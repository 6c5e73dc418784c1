"""`tidelog consume TOPIC` and `tidelog topics tail TOPIC`: records on standard output. docs/records.md shows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.settings import SHORT_MAX
from tidelog.admin.admin_client import ClientOptions
from tidelog.admin.name_completion import group_names, topic_names
from tidelog.output import EXIT_FAILED, EXIT_USAGE, fail, is_terminal, needed
from tidelog.streams.registry_options import RegistryOptions
from tidelog.text_values import AnyBytes

if TYPE_CHECKING:
    from tidelog.streams.avro_text import AvroText
    from tidelog.streams.starting_point import Start

UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
INTERRUPTED = 128
RAW, AVRO = "raw", "avro"

Topic = Annotated[str, typer.Argument(autocompletion=topic_names)]
Partitions = Annotated[list[int] | None, typer.Option("--partition", help="Of these partitions alone.")]
Count = Annotated[int | None, typer.Option("--count", min=1, max=2**63 - 1, help="End after so many.", metavar="N")]
Format = Annotated[
    str,
    typer.Option("--format", help="text, json, hex, or a template such as '{partition}:{offset} {key} {value}'."),
    AnyBytes,
]
KeyDecoder = Annotated[str, typer.Option("--key-decoder", help=f"{RAW}, or {AVRO} by the id of its schema.")]
ValueDecoder = Annotated[str, typer.Option("--value-decoder", help=f"{RAW}, or {AVRO} by the id of its schema.")]
Isolation = Annotated[str, typer.Option("--isolation", help=f"{UNCOMMITTED} or {COMMITTED}.")]


def consume(
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", help="As a member: begin at its committed offsets, and commit.", autocompletion=group_names
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="earliest, latest, an OFFSET, -N for the last N of each partition, or a TIME; earliest. Of a group: "
            "where it has committed nothing.",
            metavar="WHERE",
        ),
    ] = None,
    partition: Partitions = None,
    count: Count = None,
    exit_: Annotated[bool, typer.Option("--exit", help="End at the end of the topic as it is now.")] = False,
    isolation: Isolation = UNCOMMITTED,
    format_: Format = "text",
    key_decoder: KeyDecoder = RAW,
    value_decoder: ValueDecoder = RAW,
    *,
    schemas: RegistryOptions,
    options: ClientOptions,
) -> None:
    """Print a topic's records."""
    from tidelog.streams.starting_point import WORDS, parse_start  # noqa: PLC0415

    start = parse_start(from_ or "earliest")
    if group is not None and not 0 < len(group.encode()) <= SHORT_MAX:
        fail(f"--group: a name has 1 to {SHORT_MAX} bytes", EXIT_USAGE)
    if group is not None and partition:
        fail("--group assigns partitions itself: leave --partition out", EXIT_USAGE)
    if group is not None and start.word not in WORDS:
        fail("--from of a group is earliest or latest; tidelog groups reset-offsets moves it elsewhere", EXIT_USAGE)
    lines = Lines(format_, key_decoder, value_decoder, schemas)
    read(topic, group, start, partition, count, exit_, isolation, lines, options)


def tail(
    topic: Topic,
    last: Annotated[int, typer.Option("--last", "-n", help="Begin so many before the end of each partition.")] = 10,
    partition: Partitions = None,
    count: Count = None,
    isolation: Isolation = UNCOMMITTED,
    format_: Format = "{partition}:{offset} {time} {key} {value}",
    key_decoder: KeyDecoder = RAW,
    value_decoder: ValueDecoder = RAW,
    *,
    schemas: RegistryOptions,
    options: ClientOptions,
) -> None:
    """The last records of a topic, and those that come."""
    from tidelog.streams.starting_point import Start  # noqa: PLC0415

    start = Start(offset=-last) if last else Start("latest")
    lines = Lines(format_, key_decoder, value_decoder, schemas)
    read(topic, None, start, partition, count, False, isolation, lines, options)


class Lines:
    """How records are printed. Ends the command for a format or a decoder that cannot be."""

    def __init__(self, format_: str, key: str, value: str, schemas: RegistryOptions) -> None:
        from tidelog.streams.record_formats import BadFormat, shape_of  # noqa: PLC0415

        if unknown := {key, value} - {RAW, AVRO}:
            fail(f"{min(unknown)!r} is no decoder; there are {RAW} and {AVRO}", EXIT_USAGE)
        self.output = needed(sys.stdout, "standard output")
        self._avro = _avro(schemas) if AVRO in (key, value) else None
        try:
            self.shape = shape_of(
                format_,
                terminal=is_terminal(sys.stdout),
                key=self._avro if key == AVRO else None,
                value=self._avro if value == AVRO else None,
            )
        except BadFormat as error:
            fail(f"--format: {error}", EXIT_USAGE)

    def report(self) -> None:
        """Ends the command with 1 if something could not be decoded, now that all was read."""
        if self._avro is not None and self._avro.undecoded:
            fail(
                f"{self._avro.undecoded:,} keys or values could not be decoded: see `undecoded` in the output",
                EXIT_FAILED,
            )


def _avro(schemas: RegistryOptions) -> AvroText:
    from tidelog.streams.avro_text import AvroText  # noqa: PLC0415

    registry = schemas.registry()
    if registry is None:
        fail(f"the decoder {AVRO} needs --schema-registry", EXIT_USAGE)
    return AvroText(registry.schema)


def read(
    topic: str,
    group: str | None,
    start: Start,
    only: list[int] | None,
    count: int | None,
    exit_at_end: bool,
    isolation: str,
    lines: Lines,
    options: ClientOptions,
) -> None:
    if isolation not in (UNCOMMITTED, COMMITTED):
        fail(f"--isolation is {UNCOMMITTED} or {COMMITTED}", EXIT_USAGE)
    from tidelog.streams.consumption import Consumption, Rebalances  # noqa: PLC0415
    from tidelog.streams.interruption import Interruption  # noqa: PLC0415
    from tidelog.streams.output_pipe import OutputPipe, Unwritten  # noqa: PLC0415
    from tidelog.streams.progress import Progress  # noqa: PLC0415
    from tidelog.streams.schema_registry import RegistryFailure  # noqa: PLC0415
    from tidelog.streams.topic_clients import consumer_of, topic_of  # noqa: PLC0415

    with topic_of(options, topic) as (where, partitions), Interruption() as interruption:
        wanted = sorted(set(only)) if only else partitions
        if absent := set(wanted) - set(partitions):
            fail(f"--partition {min(absent)}: {topic} has {len(partitions)} partitions")
        reset = start.word or "earliest"
        with consumer_of(where, group=group, reset=reset, committed_only=isolation == COMMITTED) as consumer:
            terminal = sys.stderr if is_terminal(sys.stderr) and not is_terminal(sys.stdout) else None
            progress = Progress("read", terminal)
            out = OutputPipe(lines.output.fileno(), interruption)
            run = Consumption(
                consumer, lines.shape, out, interruption, progress,
                count=count, exit_at_end=exit_at_end, commits=group is not None,
            )  # fmt: skip
            if group is None:
                _place(consumer, topic, wanted, start)
            else:
                consumer.subscribe([topic], listener=Rebalances(run))
            try:
                run.run()
            except UnicodeDecodeError:
                fail(f"a record of {topic} has a header whose name is no UTF-8, which this client cannot read")
            except RegistryFailure as error:
                fail(str(error))
            except Unwritten as error:
                fail(f"cannot write: {error}")
            progress.end()
    lines.report()
    if interruption.asked and not run.finished and (count is not None or exit_at_end):
        raise typer.Exit(INTERRUPTED + interruption.number)


def _place(consumer: Any, topic: str, partitions: list[int], start: Start) -> None:
    """Put a consumer without a group where it begins."""
    from kafka.structs import TopicPartition  # noqa: PLC0415

    from tidelog.streams.starting_point import Misplaced, positions  # noqa: PLC0415
    from tidelog.streams.topic_clients import offsets_at  # noqa: PLC0415

    rows = [TopicPartition(topic, one) for one in partitions]
    consumer.assign(rows)
    begins, ends = consumer.beginning_offsets(rows), consumer.end_offsets(rows)
    try:
        found = positions(
            start,
            {one.partition: offset for one, offset in begins.items()},
            {one.partition: offset for one, offset in ends.items()},
            lambda time_ms: offsets_at(consumer, topic, partitions, time_ms),
        )
    except Misplaced as error:
        fail(f"--from {start.offset}: {error}")
    for one in rows:
        consumer.seek(one, found[one.partition])
