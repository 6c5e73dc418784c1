"""Commands whose shared options are declared once, as a class.

A parameter that is annotated with an option group, a dataclass whose fields are annotated as options, stands for all of
them: typer sees the fields in its place, and the command gets one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import typer

from tidelog.number_ranges import with_range
from tidelog.text_values import with_text_check

C = TypeVar("C", bound=Callable[..., Any])


class CommandGroup(typer.Typer):
    """Commands under one name; without a command it prints their list."""

    def __init__(self, summary: str, **options: Any) -> None:
        look: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
        super().__init__(help=summary, no_args_is_help=True, **look, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[C], C]:
        register = super().command(name, **options)

        def add(command: C) -> C:
            register(_with_plain_options(command))
            return command

        return add


def _with_plain_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with the fields of its option groups as parameters of its own."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in signature.parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            fields = inspect.signature(group, eval_str=True).parameters
            groups[parameter.name] = group, list(fields)
            parameters += map(_with_checks, fields.values())
        else:
            parameters.append(_with_checks(parameter))

    @functools.wraps(command)
    def call(**given: Any) -> Any:
        for name, (group, fields) in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields})
        return command(**given)

    by_name = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    call.__signature__ = signature.replace(parameters=by_name)  # type: ignore[attr-defined]
    return call


def _with_checks(parameter: inspect.Parameter) -> inspect.Parameter:
    return with_text_check(with_range(parameter))
