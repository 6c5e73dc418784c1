"""What all messages and their structs have in common, for type checkers alone."""

# Made by `python -m tests.wire.message_stubs`: do not edit.

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
