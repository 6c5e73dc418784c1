"""`tidelog completion bash | zsh | fish`: what a shell needs to complete commands, options, topics and groups."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.output import EXIT_USAGE, fail

SHELLS = ("bash", "zsh", "fish")
PROGRAM, ASKED_BY = "tidelog", "_TIDELOG_COMPLETE"  # the latter is what the script sets for this command


def completion(shell: Annotated[str, typer.Argument(help=f"{', '.join(SHELLS)}.", metavar="SHELL")]) -> None:
    """Print a shell's completion of this command; docs/records.md says where it goes."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # noqa: PLC0415

    if shell not in SHELLS:
        fail(f"{shell!r} is none of {', '.join(SHELLS)}", EXIT_USAGE)
    print(get_completion_script(prog_name=PROGRAM, complete_var=ASKED_BY, shell=shell))
