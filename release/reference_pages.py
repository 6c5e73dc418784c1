"""`python -m release.reference_pages`: writes docs/settings.md, docs/commands.md and the table of docs/upgrade.md.

Settings come from their declarations, commands from typer, levels from `release.feature_levels`. A test compares the
pages with what this makes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import CLUSTER_WIDE, PER_BROKER, READ_ONLY, Catalogue, Setting, settings_of
from common.topic_settings import TOPIC_SETTINGS
from release.feature_levels import ADDED, RELEASES
from release.project import ROOT
from tidelog.command_line import application

DOCS = ROOT / "docs"
MADE = "<!-- made by `python -m release.reference_pages` -->"
CHANGES = {READ_ONLY: "restart", PER_BROKER: "per broker", CLUSTER_WIDE: "while running"}
BLOCK = re.compile(r"(<!-- levels -->\n).*?(<!-- end -->)", re.DOTALL)
LONG = 60  # characters of a default that a table can show


def settings_page() -> str:
    """Every setting of nodes and topics, by the group that declares it."""
    parts = [
        f"# Settings\n\n{MADE}\n\n"
        "Every setting of nodes and topics, as `tidelog config` shows it. A node takes them from its properties file, "
        "from variables (`log.segment.bytes` is `TIDELOG_LOG_SEGMENT_BYTES`, and a leading `tidelog.` is dropped) and "
        "from `--set`; the later overrides the earlier. *change* says when a new value takes effect: *while running* "
        "ones are set with `kafka-configs` for one broker or all, *per broker* ones for one, and "
        "*restart* ones in the file. Settings marked ° may have a value of a listener's own, "
        "`listener.name.<name>.<setting>`.\n"
    ]
    parts += [
        f"## {title(group)}\n\n{table_of(declared.setting for declared in settings_of(group).values())}"
        for group in NODE_SETTINGS.groups
    ]
    parts.append(f"## Without effect\n\nApache Kafka's, which its tools may set.\n\n{table_of(inert(NODE_SETTINGS))}")
    parts.append(f"## Topics\n\n{topics_table()}")
    return "\n".join(parts)


def inert(catalogue: Catalogue) -> Iterator[Setting]:
    return (setting for setting in catalogue if setting.inert)


def title(group: type) -> str:
    """The first sentence of the group's description."""
    text = inspect.getdoc(group) or ""
    return re.split(r"[.;:](?:\s|$)", text, maxsplit=1)[0].replace("\n", " ")


def table_of(settings: Iterable[Setting]) -> str:
    rows = [
        [f"`{one.name}`{' °' if one.per_listener else ''}", one.type_name, default(one), one.range_text,
         CHANGES[one.update], one.doc]
        for one in settings
    ]  # fmt: skip
    return table(["name", "type", "default", "range", "change", "meaning"], rows)


def topics_table() -> str:
    rows = [
        [f"`{one.name}`", one.type_name, default(one), one.range_text, names(one.synonyms), one.doc]
        for one in TOPIC_SETTINGS
    ]
    return table(["name", "type", "default", "range", "default of all topics", "meaning"], rows)


def default(setting: Setting) -> str:
    text = setting.text(setting.default)
    return f"`{text[:LONG]}…`" if len(text) > LONG else names([text] if text else [])


def names(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = [
        f"# Commands\n\n{MADE}\n\n"
        "Every command of `tidelog`, as its `--help` says it. The exit code is 0, 1 (failed) or 2 (bad usage); "
        "[doctor](doctor.md) has two more. Options that many commands share:\n",
        shared_table(),
    ]
    shared = {(*option.opts, option.help) for option in shared_options()}
    for words, command in commands():
        own = [
            one
            for one in command.params
            if (*one.opts, one.help) not in shared and not one.hidden and one.name != "help"
        ]
        arguments = " ".join(place(one) for one in own if one.param_type_name == "argument")
        parts.append(f"## tidelog {' '.join(words)}\n\n{sentence(command.help)}\n")
        if arguments:
            parts.append(f"`tidelog {' '.join(words)} {arguments}`\n")
        if own:
            parts.append(table(["", "default", "meaning"], [row(one) for one in own]))
    return "\n".join(parts)


def commands() -> Iterator[tuple[list[str], Any]]:
    """Each with the words that call it, groups opened."""
    root: Any = typer.main.get_command(application())
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            for inner, one in command.commands.items():
                yield [name, inner], one
        else:
            yield [name], command


def shared_options() -> list[Any]:
    """Those by which a command finds and enters a cluster, and of its output."""
    wanted = {"--bootstrap", "--command-config", "--data", "--json"}
    (command,) = [one for words, one in commands() if words == ["topics", "list"]]
    return [one for one in command.params if wanted & set(one.opts)]


def shared_table() -> str:
    return table(["", "default", "meaning"], [row(one) for one in shared_options()])


def row(option: Any) -> list[str]:
    if option.param_type_name == "argument":
        return [f"`{place(option)}`", "" if option.required else shown(option.default), sentence(option.help)]
    value = "" if option.is_flag else f" {place(option)}"
    name = ", ".join(f"`{text}{value}`" for text in [*option.opts, *option.secondary_opts])
    return [name + ("" if not option.multiple else ", may be repeated"), shown(option.default), sentence(option.help)]


def place(option: Any) -> str:
    """What stands for a value."""
    return str(option.metavar or option.name.rstrip("_").upper().replace("_", "-"))


def shown(value: Any) -> str:
    is_plain = isinstance(value, (str, int, float, Path)) and value not in ("", False)
    return f"`{value}`" if is_plain else ""


def sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def levels_table() -> str:
    """What each release supports, and what each level adds."""
    names = sorted({name for levels in RELEASES.values() for name in levels})
    rows = [[release, *(spread(levels.get(name, (0, 0))) for name in names)] for release, levels in RELEASES.items()]
    head = table(["release", *(f"`{name}`" for name in names)], rows)
    return head + "\n" + table(["level", "what it allows"], [[f"`{level}`", text] for level, text in ADDED.items()])


def spread(levels: tuple[int, int]) -> str:
    return f"{levels[0]} to {levels[1]}" if levels[1] else "none"


def upgrade_page(page: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}\n{levels_table()}\n{match[2]}", page)


def table(columns: list[str], rows: Iterable[list[str]]) -> str:
    cells = [columns, ["---"] * len(columns), *([escaped(cell) for cell in line] for line in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("<", "&lt;") if "`" not in cell else cell.replace("|", "\\|")


PAGES = {
    "settings.md": lambda page: settings_page(),
    "commands.md": lambda page: commands_page(),
    "upgrade.md": upgrade_page,
}
"""What makes each page, of the page as it is."""


def main() -> int:
    for name, made in PAGES.items():
        path = DOCS / name
        present = path.read_text() if path.exists() else ""
        if (new := made(present)) != present:
            path.write_text(new)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
