"""Every text of a command line is UTF-8, and one that is not is refused before anything is done.

Names travel in requests as UTF-8. kafka-python's own requests have no check of it: the error would end the library's
thread alone, and the command would wait for ever. Python keeps bytes that are no UTF-8 as lone surrogates.
"""

from __future__ import annotations

import copy
import inspect
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.models import ParameterInfo


class AnyBytes:
    """A note on a parameter whose text becomes bytes of records, which need not be UTF-8."""


def with_text_check(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter of texts with the check; any other as it is."""
    annotated = get_origin(parameter.annotation) is Annotated
    kind, *notes = get_args(parameter.annotation) if annotated else (parameter.annotation,)
    if AnyBytes in notes or str not in _kinds_in(kind):
        return parameter
    if not any(isinstance(note, ParameterInfo) for note in notes):
        notes.append(typer.Argument() if parameter.default is inspect.Parameter.empty else typer.Option())
    checked = [_checked(note) if isinstance(note, ParameterInfo) else note for note in notes]
    return parameter.replace(annotation=Annotated[(kind, *checked)])


def _kinds_in(kind: Any) -> tuple[Any, ...]:
    """`str` is in those of `str`, `str | None`, `list[str]` and `list[str] | None`."""
    return (kind, *get_args(kind), *(inner for one in get_args(kind) for inner in get_args(one)))


def _checked(declared: ParameterInfo) -> ParameterInfo:
    if declared.callback is not None:
        return declared
    checked = copy.copy(declared)
    checked.callback = _check
    return checked


def _check(given: Any) -> Any:
    """Raises BadParameter, to whose text typer adds the option."""
    for one in given if isinstance(given, (list, tuple)) else (given,):
        if isinstance(one, str) and not one.isascii() and not _is_utf8(one):
            raise typer.BadParameter(f"{one.encode(errors='surrogateescape')!r} is no UTF-8")
    return given


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
