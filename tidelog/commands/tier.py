"""`tidelog tier …`: what the object store holds of the cluster, and getting it back."""

from __future__ import annotations

import typer

from tidelog.commands import tier_rebuild

app = typer.Typer(
    help="The tier: rebuild a cluster from it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(tier_rebuild.rebuild)
app.command("commit-offsets")(tier_rebuild.commit_offsets)
