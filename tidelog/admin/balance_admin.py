"""The balancer over one admin client: operations, moves, and waiting for an operation's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from common.errors import ErrorCode
from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import Request

RUN, PAUSE, RESUME, CANCEL, ADD, DRAIN = range(1, 7)
ALL = -1
ENDED = ("done", "cancelled")
Row = dict[str, Any]

_OPERATION = ("id", "kind", "brokers", "state", "reason", "requested_by", "begun_ms", "ended_ms", "moves_begun",
              "moves_done", "moves_running", "bytes_to_copy", "replicas_left")  # fmt: skip
_MOVE = ("number", "operation", "topic", "partition_index", "replicas_before", "replicas_after", "goal", "reason",
         "source_before", "source_after", "target_before", "target_after", "agreed", "bytes_to_copy", "begun_ms",
         "ended_ms", "outcome")  # fmt: skip

_OF_BEGUN = ("number", "operation", "begun_ms", "ended_ms", "outcome")


class _Coded(Protocol):
    """A response with an error code."""

    error_code: int
    error_message: str | None


C = TypeVar("C", bound=_Coded)


class BalanceAdmin:
    """Every method raises Refused with the cluster's reason."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def alter(
        self,
        act: int,
        brokers: Sequence[int] = (),
        operation: int = ALL,
        moves_max: int = 0,
        bytes_per_second: int = -1,
    ) -> list[int]:
        """The ids of the operations that began or changed."""
        from wire.messages import AlterBalanceRequest  # noqa: PLC0415

        response = self._send(
            AlterBalanceRequest(
                act=act,
                operation=operation,
                brokers=list(brokers),
                moves_max=moves_max,
                bytes_per_second=bytes_per_second,
            )
        )
        return list(response.operations)

    def status(self) -> Row:
        """What runs now, and what it waits for."""
        from wire.messages import DescribeBalanceRequest  # noqa: PLC0415

        response = self._send(DescribeBalanceRequest(include_moves=True))
        return {
            "enabled": response.enabled,
            "dry_run": response.dry_run,
            "waits": response.waits,
            "uneven": [_row(one, ("goal", "broker_id", "looks")) for one in response.uneven],
            "cells": list(response.cells),
            "operations": [_operation(one) for one in response.operations],
            "running": [_move(one) for one in response.running],
        }

    def plan(self, toward: Sequence[int], most: int) -> Row:
        """What would move now, by goal."""
        from wire.messages import PlanBalanceRequest  # noqa: PLC0415

        response = self._send(PlanBalanceRequest(toward=list(toward), moves_max=most))
        goals = []
        for one in response.goals:
            row = _row(one, ("goal", "before", "after", "bound", "moves", "broken"))
            goals.append(row | {"why_not": {found.reason: found.count for found in one.why_not}})
        return {
            "known": response.is_known,
            "cut_short": response.cut_short,
            "cells": list(response.cells),
            "goals": goals,
            "moves": [_planned(one) for one in response.moves],
        }

    def history(
        self, operation: int = ALL, topic: str | None = None, partition: int = ALL, limit: int = 100
    ) -> tuple[list[Row], list[Row]]:
        """Operations and moves that the controller keeps, the newest last."""
        from wire.messages import ListBalanceMovesRequest  # noqa: PLC0415

        response = self._send(
            ListBalanceMovesRequest(operation=operation, topic=topic, partition_index=partition, limit=limit)
        )
        return [_operation(one) for one in response.operations], [_move(one) for one in response.moves]

    def has_topic(self, *names: str) -> bool:
        """Whether one of the names is a topic's, or is one of which this user may not know."""
        absent = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
        return any(row["error_code"] not in absent for row in self._client.describe_topics(list(names)))

    def wait(self, operation: int, pause: Callable[[], None], progress: Callable[[Row, str | None], None]) -> Row:
        """The operation at its end. `progress` is called with it, and with what it waits for, whenever they change."""
        shown: tuple[Any, ...] = ()
        while True:
            (row,), _moves = self.history(operation, limit=0)
            if row["state"] in ENDED:
                return row
            waits = self.status()["waits"]
            if shown != (shown := (row["replicas_left"], row["moves_running"], row["moves_done"], waits)):
                progress(row, waits)
            pause()

    def _send(self, request: Request[C]) -> C:
        response = self._client.send(request)
        if response.error_code:
            row = {"error_code": response.error_code, "error_message": response.error_message}
            raise Refused(error_text(row) or "refused")
        return response


def _row(message: Any, fields: Sequence[str]) -> Row:
    return {name: getattr(message, name) for name in fields}


def _operation(message: Any) -> Row:
    """`replicas_left` is None of an operation that empties no broker, or does so no more."""
    row = _row(message, _OPERATION)
    return row | {"replicas_left": None if row["replicas_left"] < 0 else row["replicas_left"]}


def _move(message: Any) -> Row:
    row = _row(message, _MOVE)
    row["partition"] = row.pop("partition_index")
    return row


def _planned(message: Any) -> Row:
    row = _row(message, [name for name in _MOVE if name not in _OF_BEGUN])
    row["partition"] = row.pop("partition_index")
    return row
