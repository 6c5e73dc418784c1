"""The options of commands that ask a schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.settings import SettingError
from tidelog.output import EXIT_USAGE, fail

if TYPE_CHECKING:
    from tidelog.streams.schema_registry import SchemaRegistry


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """Where schemas are."""

    schema_registry: Annotated[
        str, typer.Option("--schema-registry", help="A registry with Confluent's API.", metavar="URL")
    ] = ""
    schema_registry_config: Annotated[
        Path | None,
        typer.Option(help="Its login and authority: basic.auth.user.info, ssl.ca.location, …", metavar="FILE"),
    ] = None

    def registry(self) -> SchemaRegistry | None:
        """None where there is none. Ends the command for options that cannot be."""
        from tidelog.streams.registry_place import ask_at  # noqa: PLC0415
        from tidelog.streams.schema_registry import SchemaRegistry  # noqa: PLC0415

        try:
            ask = ask_at(self.schema_registry, self.schema_registry_config)
        except SettingError as error:
            fail(str(error), EXIT_USAGE)
        return None if ask is None else SchemaRegistry(ask)
