"""What a pure decision yields: the records to append and the reply to give once they are committed."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Record = TypeVar("Record")
Reply_co = TypeVar("Reply_co", covariant=True)


@dataclass(slots=True)
class Decision(Generic[Record, Reply_co]):
    """`records` in order of replay, possibly none (a read); `reply` holds only after they are committed. With `again`
    they are a part alone: once committed, it is decided again, and the reply is that of the last decision."""

    reply: Reply_co
    records: list[Record] = field(default_factory=list)
    again: bool = False
