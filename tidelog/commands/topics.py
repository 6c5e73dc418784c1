"""`tidelog topics list | create | describe | alter | delete`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from common.identifiers import uuid_text
from common.settings import SHORT_MAX, SettingError
from common.topic_settings import TOPIC_SETTINGS
from tidelog.admin.admin_client import CommandOptions, admin_client, error_text, outcome_text, topic_error_text
from tidelog.admin.eligible_leaders import eligible_leaders
from tidelog.admin.internal_topics import Internal, say_hidden, without_internal
from tidelog.admin.name_completion import topic_names
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, fail, show

app = CommandGroup("Topics: list, create, describe, alter, delete, reassign, elect.")
Configs = Annotated[list[str] | None, typer.Option("--config", help="NAME=VALUE of the topic.", metavar="NAME=VALUE")]


@app.command("list")
def list_topics(internal: Internal = False, *, options: CommandOptions) -> None:
    """Every topic with its partitions and replicas."""
    with admin_client(options) as client:
        rows = [_summary(topic) for topic in client.describe_topics()]
    rows.sort(key=lambda row: str(row["topic"]))
    hidden = 0
    if not (internal or options.as_json):
        rows, hidden = without_internal(rows, lambda row: str(row["topic"]))
    columns = ["topic", "partitions", "replicas", "internal", "id"]
    show(rows, as_json=options.as_json, columns=columns, empty="no topics")
    say_hidden(hidden, "internal topic is", "internal topics are")


@app.command()
def create(
    name: str,
    partitions: Annotated[int, typer.Option(min=-1, help="-1: the cluster's num.partitions.")] = -1,
    replicas: Annotated[
        int, typer.Option(min=-1, max=SHORT_MAX, help="-1: the cluster's default.replication.factor.")
    ] = -1,
    config: Configs = None,
    *,
    options: CommandOptions,
) -> None:
    """Create a topic."""
    wanted = {"num_partitions": partitions, "replication_factor": replicas, "configs": parse_configs(config or [])}
    with admin_client(options) as client:
        row = client.create_topics({name: wanted}, raise_errors=False)["topics"][0]
    if problem := error_text(row):
        fail(f"{name}: {problem}")
    shown = {"topic": name, "partitions": row["num_partitions"], "replicas": row["replication_factor"]}
    show([shown], as_json=options.as_json, columns=["topic", "partitions", "replicas"])


@app.command()
def describe(name: Annotated[str, typer.Argument(autocompletion=topic_names)], options: CommandOptions) -> None:
    """A topic's partitions with leader, replicas, ISR and the brokers outside of it that may lead when no other can,
    and the settings that the topic overrides."""
    from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

    with admin_client(options) as client:
        topic = client.describe_topics([name])[0]
        if problem := topic_error_text(name, topic):
            fail(problem)
        eligible = eligible_leaders(client, name)
        described = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="modified")
    entries = [item for found in described.values() for item in found.get(name, {}).items()]
    configs = {key: entry["value"] for key, entry in entries if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"}
    rows = (_partition(row, eligible) for row in topic["partitions"])
    partitions = sorted(rows, key=lambda row: int(row["partition"]))
    if options.as_json:
        print(json.dumps(_summary(topic) | {"configs": configs, "partitions": partitions}))
        return
    show([_summary(topic)], as_json=False, columns=["topic", "partitions", "replicas", "internal", "id"])
    show(partitions, as_json=False, columns=["partition", "leader", "epoch", "replicas", "isr", "eligible", "offline"])
    for key, value in sorted(configs.items()):
        print(f"{key}={value}")


@app.command()
def alter(
    name: Annotated[str, typer.Argument(autocompletion=topic_names)],
    config: Configs = None,
    reset: Annotated[list[str] | None, typer.Option(help="A setting that goes back to its default.")] = None,
    partitions: Annotated[int | None, typer.Option(help="The new number of partitions.")] = None,
    *,
    options: CommandOptions,
) -> None:
    """Change a topic's settings or raise its number of partitions."""
    from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

    changes: dict[str, Any] = {key: ("SET", value) for key, value in parse_configs(config or []).items()}
    for key in reset or []:
        _check(key)
        changes[key] = ("DELETE", None)
    if not changes and partitions is None:
        fail("nothing to alter: give --config, --reset or --partitions", EXIT_USAGE)
    with admin_client(options) as client:
        if changes:
            resource = ConfigResource(ConfigResourceType.TOPIC, name, changes)
            for outcomes in client.alter_configs([resource], raise_on_unknown=False).values():
                if (outcome := outcomes[name]) != "OK":
                    fail(f"{name}: {outcome_text(outcome)}")
        if partitions is not None:
            row = client.create_partitions({name: partitions}, raise_errors=False).results[0]
            outcome = {"error_code": row.error_code, "error_message": row.error_message}
            if problem := topic_error_text(name, outcome):
                fail(problem)
    if options.as_json:
        print(json.dumps({"topic": name, "altered": sorted(changes), "partitions": partitions}))


@app.command()
def delete(names: Annotated[list[str], typer.Argument(autocompletion=topic_names)], options: CommandOptions) -> None:
    """Delete topics with all their records."""
    with admin_client(options) as client:
        rows = client.delete_topics(names, raise_errors=False)["topics"]
    problems = [problem for row in rows if (problem := topic_error_text(row["name"], row))]
    if problems:
        fail("; ".join(problems))
    if options.as_json:
        print(json.dumps([{"topic": name} for name in names]))


def parse_configs(assignments: list[str]) -> dict[str, str]:
    """NAME=VALUE pairs, checked before a broker is asked, so that the message for an error has the valid range."""
    found = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            fail(f"--config {text!r}: it must be NAME=VALUE", EXIT_USAGE)
        _check(name, value)
        found[name] = value
    return found


def _check(name: str, value: str | None = None) -> None:
    """End the command if `name` is not a setting of topics, or `value` is invalid."""
    try:
        setting = TOPIC_SETTINGS[name]
        if value is not None:
            setting.parse(value)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)


def _summary(topic: dict[str, Any]) -> dict[str, Any]:
    partitions = topic["partitions"]
    return {
        "topic": topic["name"],
        "partitions": len(partitions),
        "replicas": len(partitions[0]["replica_nodes"]) if partitions else 0,
        "internal": topic["is_internal"],
        "id": uuid_text(uuid.UUID(str(topic["topic_id"])).bytes),
    }


def _partition(row: dict[str, Any], eligible: Mapping[int, list[int]]) -> dict[str, Any]:
    return {
        "partition": row["partition_index"],
        "leader": row["leader_id"],
        "epoch": row["leader_epoch"],
        "replicas": list(row["replica_nodes"]),
        "isr": list(row["isr_nodes"]),
        "eligible": eligible.get(row["partition_index"], []),
        "offline": list(row["offline_replicas"]),
    }
