"""Every parameter of every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args


def parameters_of(command: Any, kinds: set[type], words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Those that take values of these kinds, and the words of the command before each."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from parameters_of(inner, kinds, (*words, name))
        return
    for parameter in command.params:
        annotation = parameter.type_descriptor.annotation
        if {annotation, *get_args(annotation)} & kinds:
            yield words, parameter
