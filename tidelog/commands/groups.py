"""`tidelog groups list | describe | delete`: consumer groups, their members and how far behind they are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidelog.admin.admin_client import CommandOptions, admin_client, outcome_text
from tidelog.admin.group_descriptions import described_groups
from tidelog.admin.name_completion import group_names
from tidelog.admin.replica_moves import Refused
from tidelog.command_group import CommandGroup
from tidelog.output import fail, printable, show

app = CommandGroup("Consumer groups: list, describe, delete, lag, reset-offsets.")


@app.command("list")
def list_groups(options: CommandOptions) -> None:
    """Every group with its state."""
    with admin_client(options) as client:
        groups = client.list_groups()
    rows = [
        {
            "group": g["group_id"],
            "state": str(g["group_state"]),
            "type": str(g["group_type"]),
            "protocol": g["protocol_type"],
        }
        for g in groups
    ]
    rows.sort(key=lambda row: str(row["group"]))
    show(rows, as_json=options.as_json, columns=["group", "state", "type", "protocol"], empty="no groups")


@app.command()
def describe(name: Annotated[str, typer.Argument(autocompletion=group_names)], options: CommandOptions) -> None:
    """A group's members, and the lag of every partition that it has committed."""
    from kafka.admin import OffsetSpec  # noqa: PLC0415

    with admin_client(options) as client:
        try:
            group = described_groups(client, [name])[name]
        except Refused as error:
            fail(str(error))
        committed = client.list_group_offsets({name: None})[name]
        ends = client.list_partition_offsets(dict.fromkeys(committed, OffsetSpec.LATEST))
    members = [
        {
            "member": m["member_id"],
            "client": m["client_id"],
            "host": m["client_host"],
            "instance": m["group_instance_id"],
        }
        for m in group["members"]
    ]
    offsets = [_offset(partition, at, ends.get(partition)) for partition, at in sorted(committed.items())]
    if group["group_state"] == "Dead" and not offsets:
        fail(f"there is no group {name}")
    if options.as_json:
        shown = {"group": name, "state": group["group_state"], "members": members, "offsets": offsets}
        print(json.dumps(shown))
        return
    print(f"group {printable(name)}  state {group['group_state']}  protocol {group['protocol_data'] or '-'}")
    show(members, as_json=False, columns=["member", "client", "host", "instance"], empty="no members")
    show(offsets, as_json=False, columns=["topic", "partition", "offset", "end", "lag"], empty="no committed offsets")


@app.command()
def delete(names: Annotated[list[str], typer.Argument(autocompletion=group_names)], options: CommandOptions) -> None:
    """Delete empty groups with their committed offsets."""
    with admin_client(options) as client:
        results = client.delete_groups(names)
    problems = [f"{name}: {outcome_text(result)}" for name, result in results.items() if result != "OK"]
    if problems:
        fail("; ".join(problems))
    if options.as_json:
        print(json.dumps([{"group": name} for name in names]))


def _offset(partition: Any, committed: Any, end: Any) -> dict[str, Any]:
    end_offset = end.offset if end is not None else None
    lag = end_offset - committed.offset if end_offset is not None else None
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": committed.offset,
        "end": end_offset,
        "lag": lag,
    }
