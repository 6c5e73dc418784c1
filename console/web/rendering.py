"""The templates: everything that is put into one is escaped, and an unknown name is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from console.web.number_text import FILTERS

_CODE = re.compile("`([^`]*)`")
TEMPLATES = Path(__file__).parents[1] / "templates"


def templates(address_of: Callable[[str], str]) -> Environment:
    """`address_of`: that of a static file."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= FILTERS | {"quoted": quoted, "coded": coded, "static": address_of}
    return made


def coded(text: object) -> Markup:
    """Commands, which are written between backticks, as such."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(str(text)))))


def quoted(text: object) -> str:
    """A name as one part of a path."""
    return quote(str(text), safe="")
