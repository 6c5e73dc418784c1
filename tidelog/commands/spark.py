"""`tidelog spark …`: jobs over the tier, beside the running cluster. They need the extra `spark` and a Java."""

from __future__ import annotations

from tidelog.command_group import CommandGroup
from tidelog.commands import spark_compact, spark_erase, spark_export, spark_read, spark_shipping, spark_verify

app = CommandGroup("Jobs over the tier: read, compact, verify, erase, export.")
app.command()(spark_read.read)
app.command()(spark_compact.compact)
app.command()(spark_verify.verify)
app.command()(spark_erase.erase)
app.command()(spark_export.export)
app.command()(spark_shipping.package)
app.command()(spark_shipping.script)
