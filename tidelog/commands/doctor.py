"""`tidelog doctor`: everything that is known to go wrong, with what to do. docs/doctor.md lists the looks."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tidelog.admin.admin_client import CommandOptions, client_of, reach
from tidelog.output import show

EXIT_WARNING, EXIT_CRITICAL = 3, 4


def doctor(
    apart_s: Annotated[
        float, typer.Option("--seconds", min=0, max=600, help="Between two looks at lag and throttling.")
    ] = 3.0,
    *,
    options: CommandOptions,
) -> None:
    """Look once at everything that is known to go wrong, and say what to do.

    It ends with 0 if nothing is wrong, 3 for warnings or a look that was refused, 4 for what hurts now.
    """
    from tidelog.cluster.layout import TLS_DIRECTORY  # noqa: PLC0415
    from tidelog.doctor.examination import Examination  # noqa: PLC0415
    from tidelog.doctor.findings import Severity  # noqa: PLC0415

    where = reach(options)
    certificates = options.data / TLS_DIRECTORY if options.bootstrap is None else None
    with client_of(where) as client:
        found = Examination(client, where, certificates, apart_s).run()
    worst = max((one.severity for one in found), default=Severity.NOTE)
    rows = [
        {"severity": one.severity.name.lower(), "check": one.check, "what": one.what, "to_do": one.todo}
        for one in found
    ]
    if options.as_json:
        print(json.dumps({"worst": worst.name.lower() if found else "none", "findings": rows}))
    else:
        show(rows, as_json=False, columns=["severity", "check", "what", "to_do"], empty="nothing is wrong", brief=True)
    sys.stdout.flush()
    if worst is Severity.CRITICAL:
        raise typer.Exit(EXIT_CRITICAL)
    if worst in (Severity.WARNING, Severity.UNSEEN):
        raise typer.Exit(EXIT_WARNING)
