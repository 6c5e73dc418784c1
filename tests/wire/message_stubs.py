"""Writes the types of the messages: `python -m tests.wire.message_stubs`, which `make format` runs.

The message classes are compiled from schemas when they are imported (`wire/messages.py`), so mypy sees nothing of them.
It reads `wire/messages.pyi` instead, which names the classes, and `wire/message_types/`, which has their fields, one
file for each family of APIs. A test fails when these are not what is made here.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from wire import messages

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "wire/message_types"
FACE = "wire/messages.pyi"
INDENT = "    "
WIDTH = 120
OUR_KEYS_FROM = 10_000
GENERATED = "# Made by `python -m tests.wire.message_stubs`: do not edit."

# What values of a schema's type are in Python. A uuid of zeros reads as None, as does a bitfield of nothing known.
VALUES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes",
    "uuid": "UUID | None",
    "bitfield": "Collection[int] | None",
} | dict.fromkeys(("int8", "int16", "uint16", "int32", "int64"), "int")

USES = ("from collections.abc import Collection", "from uuid import UUID")

# Families whose modules in the codec library have other names.
FAMILIES = {
    "group": "groups",
    "transaction": "transactions",
    "api_versions": "metadata",
    "find_coordinator": "metadata",
}

BASE = f'''\
"""What all messages and their structs have in common, for type checkers alone."""

{GENERATED}

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

R = TypeVar("R")
AnyStruct = TypeVar("AnyStruct")

@dataclass_transform(kw_only_default=True, eq_default=False)
class Compiled: ...

class Struct(Compiled):
    """Fields that are not given have the schema's default."""

    version: int | None = ...
    _struct: ClassVar[Any]

    def to_dict(self) -> dict[str, Any]: ...

class Message(Struct):
    API_KEY: ClassVar[int]
    _struct: ClassVar[Any]
    _valid_versions: ClassVar[tuple[int, int]]

    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    def encode(self, version: int) -> bytes: ...
    @classmethod
    def decode(cls, data: bytes | memoryview, version: int) -> Self: ...

class Response(Message): ...

class Request(Message, Generic[R]):
    """`R` is the class of its response."""
'''

FACE_TAIL = """
__all__: list[str]

def schema_uuid(raw: bytes) -> UUID: ...
def raw_uuid(value: UUID | None) -> bytes: ...
def changed(message: AnyStruct, **fields: object) -> AnyStruct: ...
"""


def stubs() -> dict[str, str]:
    """The text of each file by its path in the repository."""
    families: dict[str, list[str]] = {}
    for name in sorted(messages.__all__):
        if getattr(getattr(messages, name), "_struct", None) is not None:
            families.setdefault(_family(getattr(messages, name)), []).append(name)
    files = {f"{FOLDER}/{family}.pyi": _family_file(family, names) for family, names in families.items()}
    files[f"{FOLDER}/base.pyi"] = BASE
    files[FACE] = _face(families)
    return files


def _family(message_class: Any) -> str:
    module = message_class.__module__
    if module == messages.__name__:
        return "tidelog" if message_class.API_KEY >= OUR_KEYS_FROM else "nodes"
    last = str(module).rsplit(".", 1)[1]
    return FAMILIES.get(last, last)


def _face(families: Iterable[str]) -> str:
    doc = messages.__doc__
    assert doc is not None
    lines = [f'"""{doc}"""', "", GENERATED, "", "from __future__ import annotations", "", "from uuid import UUID", ""]
    lines += [f"from {FOLDER.replace('/', '.')}.{family} import *" for family in sorted([*families, "base"])]
    return "\n".join(lines) + "\n" + FACE_TAIL


def _family_file(family: str, names: list[str]) -> str:
    lines: list[str] = []
    for name in names:
        lines += ["", *_class(getattr(messages, name), _base(name), 0)]
    text = "\n".join(lines)
    uses = [line for line in USES if line.rsplit(" ", 1)[1] in text]
    bases = ", ".join(base for base in ("Request", "Response", "Struct") if f"({base}" in text)
    head = [f'"""The messages of the family {family}, for type checkers alone."""', "", GENERATED, ""]
    head += ["from __future__ import annotations", ""]
    head += [*uses, ""] if uses else []
    head += [f"from {FOLDER.replace('/', '.')}.base import {bases}"]
    return "\n".join([*head, text]) + "\n"


def _base(name: str) -> str:
    return f"Request[{name.removesuffix('Request')}Response]" if name.endswith("Request") else "Response"


def _class(made: Any, base: str, depth: int) -> list[str]:
    """A class with its nested structs before its fields."""
    pad, inner = INDENT * depth, INDENT * (depth + 1)
    lines = [f"{pad}class {made.__name__}({base}):"]
    about = made._struct._about
    if depth == 0 and about:
        lines += [*_docstring(about, inner), ""]
    structs = {field.type_str: field.data_class for field in made._struct.fields.values() if _is_struct(field)}
    for struct in structs.values():
        lines += [*_class(struct, "Struct", depth + 1), ""]
    lines += [f"{inner}{line}" for line in _fields(made)]
    if not made._struct.fields:
        lines[-1] = f"{pad}class {made.__name__}({base}): ..."
    return lines


def _docstring(about: str, pad: str) -> Iterator[str]:
    rows = textwrap.wrap(about, WIDTH - len(pad) - 3)
    if len(rows) == 1 and len(rows[0]) + len(pad) + 6 <= WIDTH:
        yield f'{pad}"""{rows[0]}"""'
        return
    yield f'{pad}"""{rows[0]}'
    yield from (f"{pad}{row}" for row in rows[1:])
    yield f'{pad}"""'


def _fields(made: Any) -> Iterator[str]:
    for field in made._struct.fields.values():
        default = " = ..." if _has_default(field) else ""
        yield f"{field.name}: {_annotation(field)}{default}"


def _annotation(field: Any) -> str:
    if _is_struct(field):
        found = field.type_str
    else:
        found = VALUES[field.array_of.type_str if field.is_array() else field.type_str]
    if field.is_array():
        found = f"list[{found}]"
    null = field._nullable_versions is not None or (_has_default(field) and field.default is None)
    return f"{found} | None" if null and not found.endswith("| None") else found


def _has_default(field: Any) -> bool:
    """All have one but structs that every message carries."""
    return field.is_array() or not field.is_struct() or field.tag is not None or field._json.get("default") == "null"


def _is_struct(field: Any) -> bool:
    return bool(field.is_struct() or field.is_struct_array())


def main() -> None:
    made = stubs()
    (ROOT / FOLDER).mkdir(exist_ok=True)
    for old in (ROOT / FOLDER).iterdir():
        if f"{FOLDER}/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (ROOT / name).write_text(text)
    sys.stdout.write(f"{len(made)} files\n")


if __name__ == "__main__":
    main()
