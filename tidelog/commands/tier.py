"""`tidelog tier …`: what the object store holds of the cluster, and getting it back."""

from __future__ import annotations

from tidelog.command_group import CommandGroup
from tidelog.commands import tier_rebuild, tier_repair, tier_status

app = CommandGroup("The tier: status, ls, check; restore a deleted topic; rebuild the cluster.")
app.command()(tier_status.status)
app.command()(tier_status.ls)
app.command()(tier_repair.check)
app.command()(tier_repair.restore)
app.command()(tier_rebuild.rebuild)
app.command("commit-offsets")(tier_rebuild.commit_offsets)
