"""Groups as their coordinators describe them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from common.errors import ErrorCode
from tidelog.admin.admin_client import outcome_code, outcome_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
PATIENCE_S, PAUSE_S = 15.0, 0.2


def described_groups(
    client: AdminClient,
    names: Collection[str],
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, dict[str, Any]]:
    """Rows of DescribeGroups by name; the state of a group that there is not is `Dead`.

    A coordinator that still loads its groups, or has just lost them to another, is asked again for a while: its row is
    empty, and would pass for a group without members. Raises Refused with the coordinator's error, and KafkaError.
    """
    until_s, rows, asked = now() + PATIENCE_S, dict[str, dict[str, Any]](), sorted(names)
    while asked:
        rows |= client.describe_groups(asked)
        asked = [name for name in asked if _code(rows[name]) in NOT_YET]
        if asked and now() >= until_s:
            break
        if asked:
            pause(PAUSE_S)
    for name, row in rows.items():
        if _code(row) not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise Refused(f"{name}: {outcome_text(str(row['error']))}")
    return rows


def _code(row: dict[str, Any]) -> int:
    return outcome_code(str(row["error"])) if row["error"] else ErrorCode.NONE
