"""`tidelog spark export`: topics as tables."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.output import EXIT_USAGE, fail
from tidelog.spark_jobs.spark_job import HOW_TO_INSTALL, Partitions, SparkOptions, Tier, Topics, look, pairs, spark_job
from tidelog.streams.registry_options import RegistryOptions

if TYPE_CHECKING:
    from spark_offload.export.table_columns import ValueFormat

SCHEMA_BYTES_MAX = 4 << 20
_CATALOG_MODULES = ("pyiceberg", "sqlalchemy", "requests", "botocore", "thrift")


def export(
    tier: Tier,
    to: Annotated[str, typer.Option("--to", help="parquet or iceberg.", metavar="KIND")],
    topic: Topics = None,
    partitions: Partitions = "",
    output: Annotated[
        str, typer.Option(help="Where files go, or the warehouse: s3://… or file://…", metavar="URI")
    ] = "",
    table: Annotated[str, typer.Option(help="Iceberg: namespace.name; else tidelog.TOPIC.", metavar="NAME")] = "",
    catalog: Annotated[str, typer.Option(help="Iceberg: a catalog that pyiceberg's configuration names.")] = "",
    catalog_property: Annotated[
        list[str] | None, typer.Option(help="Iceberg: as pyiceberg takes it.", metavar="NAME=VALUE")
    ] = None,
    catalog_file: Annotated[
        Path | None, typer.Option(help="Iceberg: the SQLite file of a catalog of its own.", dir_okay=False)
    ] = None,
    value_format: Annotated[str, typer.Option(help="raw, json or avro.", metavar="FORMAT")] = "raw",
    value_schema: Annotated[
        Path | None, typer.Option(help="The columns of values: Spark DDL for JSON, or an Avro schema.")
    ] = None,
    confluent_header: Annotated[
        bool, typer.Option("--confluent-header", help="Avro values begin with Confluent's header.")
    ] = False,
    schema_id: Annotated[
        list[str] | None, typer.Option(help="The Avro schema of values with this id.", metavar="ID=FILE")
    ] = None,
    subject: Annotated[
        str, typer.Option(help="Of the schema registry; else TOPIC-value. All its versions are used.", metavar="NAME")
    ] = "",
    headers: Annotated[bool, typer.Option("--headers", help="With the records' headers.")] = False,
    orphan_hours: Annotated[
        int, typer.Option(min=0, help="Remove files that no commit names at this age; 0 for never.")
    ] = 24,
    *,
    schemas: RegistryOptions,
    spark: SparkOptions,
) -> None:
    """Bring what is new in topics into a table: one commit, each committed record exactly once.

    Exit code 1 when something could not be read or another run was faster: what is missing comes with the next run.
    """
    by_registry = _registered(schemas, subject, topic or [], value_format)
    with spark_job("export", spark) as job:
        if to == "iceberg" and importlib.util.find_spec("pyiceberg") is None:
            fail(f"pyiceberg is missing: {HOW_TO_INSTALL}")
        from spark_offload.export.job import open_table, run  # noqa: PLC0415  heavy, as all of Spark
        from spark_offload.export.options import ExportOptions  # noqa: PLC0415

        options = ExportOptions(
            **spark.choice(tier, topic, partitions),
            to=to,
            output=output,
            table=table,
            catalog=catalog,
            catalog_properties=pairs("--catalog-property", catalog_property),
            catalog_file=str(catalog_file.absolute()) if catalog_file is not None else "",
            values=_values(value_format, value_schema, confluent_header, schema_id, by_registry),
            include_headers=headers,
            orphan_hours=orphan_hours,
        )
        options.check()  # reports invalid options and missing files before a session is made
        look(options, passes_over_damage=True)
        try:
            table_ = open_table(options)
            job.show(run(job.spark, options, job.progress, table_))
        except Exception as error:
            if type(error).__module__.split(".")[0] not in _CATALOG_MODULES:
                raise
            fail(f"the catalog: {(str(error).splitlines() or [type(error).__name__])[0]}")


def _registered(schemas: RegistryOptions, subject: str, topics: Sequence[str], value_format: str) -> dict[int, str]:
    """All versions of the subject by their ids, the newest last; none without a registry."""
    from tidelog.streams.schema_registry import NoSchema, RegistryFailure  # noqa: PLC0415

    registry = schemas.registry()
    if registry is None:
        if subject:
            fail("--subject is one of --schema-registry, which is missing", EXIT_USAGE)
        return {}
    if value_format != "avro":
        fail("--schema-registry has schemas for --value-format avro", EXIT_USAGE)
    if not subject and len(topics) != 1:
        fail("--schema-registry needs one --topic, or --subject", EXIT_USAGE)
    try:
        found = registry.versions(subject or f"{topics[0]}-value")
    except (NoSchema, RegistryFailure) as error:
        fail(str(error))
    if referring := [one.number for one in found if one.referenced]:
        fail(f"schema {referring[0]} refers to others, which an export cannot follow: give whole ones by --schema-id")
    return {one.number: one.text for one in found}


def _values(
    name: str, schema: Path | None, header: bool, by_id: Sequence[str] | None, registered: dict[int, str]
) -> ValueFormat:
    from spark_offload.export.table_columns import ValueFormat  # noqa: PLC0415  after the check for what it needs

    schemas = dict(registered)
    for number, file in pairs("--schema-id", by_id):
        if not (number.isascii() and number.isdigit()) or int(number) >= 1 << 32:
            fail(f"--schema-id takes ID=FILE, not {number}={file}", EXIT_USAGE)
        schemas[int(number)] = _text(Path(file))
    newest = next(reversed(registered.values()), "")
    own = _text(schema) if schema is not None else newest
    return ValueFormat(name, own, header or bool(registered), tuple(schemas.items()))


def _text(path: Path) -> str:
    """A schema file."""
    try:
        if path.stat().st_size > SCHEMA_BYTES_MAX:
            fail(f"{path} is no schema: it is larger than {SCHEMA_BYTES_MAX >> 20} MiB", EXIT_USAGE)
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}", EXIT_USAGE)
