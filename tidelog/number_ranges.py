"""Every number of a command line has a range, and one outside of it is refused before anything is done.

The range is what a parameter declares as `min` and `max`. One that declares neither has the numbers from 0 on that a
32-bit field can hold, because most of them are sent in one: kafka-python's own requests have no check of it, and end in
a traceback of the library.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer
from typer.models import ParameterInfo

from common.settings import INT_MAX

KINDS = {int: "a whole number", float: "a number"}


def with_range(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter of numbers with the check of its range; any other as it is."""
    kind, *notes = get_args(parameter.annotation) or (None,)
    number = _number_in(kind)
    if number is None or not any(isinstance(note, ParameterInfo) for note in notes):
        return parameter
    checked = [_checked(note, number) if isinstance(note, ParameterInfo) else note for note in notes]
    return parameter.replace(annotation=Annotated[(kind, *checked)])


def _number_in(kind: Any) -> str | None:
    """What `int`, `int | None`, `list[int]` and the like hold, in words; None of anything else."""
    within = (kind, *get_args(kind), *(inner for arg in get_args(kind) for inner in get_args(arg)))
    return next((KINDS[one] for one in within if one in KINDS), None)


def _checked(declared: ParameterInfo, number: str) -> ParameterInfo:
    least = 0 if declared.min is None else declared.min
    most = INT_MAX if declared.max is None else declared.max
    ranged = copy.copy(declared)
    ranged.min = ranged.max = None  # the message of typer names one end of a range, and it has none for a list
    ranged.callback = _check(least, most, number)
    return ranged


def _check(least: float, most: float, number: str) -> Callable[[Any], Any]:
    """Raises BadParameter, to whose text typer adds the option."""

    def check(given: Any) -> Any:
        for one in given if isinstance(given, (list, tuple)) else (given,):
            if one is not None and (math.isnan(one) or not least <= one <= most):
                raise typer.BadParameter(f"{one} must be {number} from {least} to {most}")
        return given

    return check
