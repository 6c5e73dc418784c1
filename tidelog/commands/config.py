"""`tidelog config`: every setting, from its declaration."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import Setting, SettingError, environment_name
from common.topic_settings import TOPIC_SETTINGS
from tidelog.output import EXIT_USAGE, Json, fail, show, show_one


def config(
    describe: Annotated[str | None, typer.Option(help="Show everything about one setting.", metavar="NAME")] = None,
    topics: Annotated[bool, typer.Option("--topics", help="Settings of topics instead of nodes.")] = False,
    as_json: Json = False,
) -> None:
    """Every setting: type, default, range, meaning, and whether it needs a restart."""
    if describe is None:
        rows = [_row(setting) for setting in (TOPIC_SETTINGS if topics else NODE_SETTINGS)]
        show(rows, as_json=as_json, columns=["name", "type", "default", "range", "needs_restart", "meaning"])
        return
    setting = TOPIC_SETTINGS.get(describe) if topics else NODE_SETTINGS.get(describe) or TOPIC_SETTINGS.get(describe)
    if setting is None:
        try:
            NODE_SETTINGS[describe]
        except SettingError as error:
            fail(str(error), EXIT_USAGE)
        fail(f"{describe}: no such setting of topics", EXIT_USAGE)
    row = _row(setting)
    if setting.name in NODE_SETTINGS:
        row["variable"] = environment_name(setting.name)
    if setting.synonyms:
        row["default_from"] = list(setting.synonyms)
    show_one(row, as_json=as_json)


def _row(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "type": setting.type_name,
        "default": setting.text(setting.default),
        "range": setting.range_text,
        "needs_restart": setting.needs_restart,
        "meaning": setting.doc,
    }
