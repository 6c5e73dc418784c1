"""The result of a pure decision: records to append, and the reply once they are committed."""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Record = TypeVar("Record")
Reply_co = TypeVar("Reply_co", covariant=True)


class ProducerStamp(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True)
class Decision(Generic[Record, Reply_co]):
    """`records` in order of replay, none for a read; `reply` is valid only after they are committed. With `again` the
    records are a part: once they are committed, the request is decided again, and the last decision gives the reply.

    With a `producer` the records belong to its open transaction: they are pending until a marker ends it.
    """

    reply: Reply_co
    records: list[Record] = field(default_factory=list)
    again: bool = False
    producer: ProducerStamp | None = None
