"""Brokers' health as plain rows, and operators' changes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.admin.admin_client import error_text
from tidelog.admin.replica_moves import Refused

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import AlterBrokerHealthResponse

_DESCRIBE, _DEMOTE, _PROMOTE = range(3)


class Found(NamedTuple):
    """`fail_safe`: why the controller does nothing about a sick broker; empty if all is well."""

    rows: list[dict[str, Any]]
    is_automatic: bool
    is_dry_run: bool
    fail_safe: str

    def as_json(self) -> dict[str, Any]:
        return {
            "automatic": self.is_automatic,
            "dry_run": self.is_dry_run,
            "fail_safe": self.fail_safe,
            "brokers": self.rows,
        }


def described(client: AdminClient) -> Found:
    """Raises Refused with what the cluster said, and KafkaError; so do the others."""
    return _asked(client, _DESCRIBE, -1, force=False)


def demoted(client: AdminClient, broker: int, force: bool) -> Found:
    _asked(client, _DEMOTE, broker, force=force)
    return described(client)


def promoted(client: AdminClient, broker: int) -> Found:
    _asked(client, _PROMOTE, broker, force=False)
    return described(client)


def _asked(client: AdminClient, action: int, broker: int, *, force: bool) -> Found:
    from wire.messages import AlterBrokerHealthRequest  # noqa: PLC0415

    response = client.send(AlterBrokerHealthRequest(action=action, broker_id=broker, force=force))
    if response.error_code:
        row = {"error_code": response.error_code, "error_message": response.error_message}
        raise Refused(error_text(row) or "refused")
    rows = [_row(one) for one in response.brokers]
    return Found(rows, response.is_automatic, response.is_dry_run, response.fail_safe)


def _row(row: AlterBrokerHealthResponse.DescribedBrokerHealth) -> dict[str, Any]:
    since = datetime.fromtimestamp(row.since_ms / 1000, UTC).isoformat(timespec="seconds") if row.since_ms else ""
    return {
        "broker": row.broker_id,
        "state": row.state,
        "cause": row.cause,
        "since": since,
        "active": row.is_active,
        "leads": row.leads,
        "score": f"{row.score}/{row.score_max}",
        "acks_ms": _ms(row.ack_delay_us),
        "peers_ms": _ms(row.peers_delay_us),
        "silent": row.is_silent,
        "evidence": row.evidence,
    }


def _ms(microseconds: int) -> float | None:
    return None if microseconds < 0 else round(microseconds / 1000, 1)
