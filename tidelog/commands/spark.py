"""`tidelog spark …`: jobs over the tier, beside the running cluster. They need the extra `spark` and a Java."""

from __future__ import annotations

import typer

from tidelog.commands import spark_compact, spark_erase, spark_export, spark_read, spark_shipping, spark_verify

app = typer.Typer(
    help="Jobs over the tier: read, compact, verify, erase, export.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(spark_read.read)
app.command()(spark_compact.compact)
app.command()(spark_verify.verify)
app.command()(spark_erase.erase)
app.command()(spark_export.export)
app.command()(spark_shipping.package)
app.command()(spark_shipping.script)
