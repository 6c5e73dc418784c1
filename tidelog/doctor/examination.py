"""Asks a cluster all that `findings` judges. A look that is refused or not answered is a finding of its own."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from tidelog.admin import broker_health
from tidelog.admin.admin_client import Reach, outcome_text
from tidelog.admin.balance_admin import BalanceAdmin
from tidelog.admin.group_lag import lags
from tidelog.admin.library_client import AdminClient
from tidelog.admin.open_transactions import examined
from tidelog.admin.quota_admin import described_shares
from tidelog.admin.replica_moves import Refused, ReplicaMoves
from tidelog.admin.usage_admin import described
from tidelog.doctor import findings
from tidelog.doctor.findings import Finding, Severity
from tidelog.doctor.tier_findings import of_tier
from tidelog.tier.access import blocked_bytes, reported

TLS_TIMEOUT_S = 5.0
UNFAIR_SHARE = 300 / (7 * 24 * 3600)  # the objective of `tidelog quotas slo`
TOPICS_AT_ONCE = 200
Look = Callable[[], list[Finding]]


class Examination:
    """Two looks at what changes are `apart_s` seconds from each other."""

    def __init__(self, client: AdminClient, where: Reach, certificates: Path | None, apart_s: float) -> None:
        self._client = client
        self._where = where
        self._certificates = certificates
        self._apart_s = apart_s
        self._addresses: list[tuple[str, int]] = []

    def run(self) -> list[Finding]:
        """All findings, the worst first."""
        looks: dict[str, Look] = {
            "brokers": self._brokers,
            "partitions": self._partitions,
            "controllers": self._controllers,
            "health": self._health,
            "tier": self._tier,
            "transactions": self._transactions,
            "load": self._moving,
            "throttling": self._fairness,
            "balance": lambda: findings.of_balance(BalanceAdmin(self._client).status()),
            "features": lambda: findings.of_features(self._client.describe_features()),
            "certificates": self._ends_of_certificates,
        }
        found = [one for name, look in looks.items() for one in _seen(name, look)]
        return sorted(found, key=lambda one: -one.severity)

    def _brokers(self) -> list[Finding]:
        rows = self._client.describe_cluster()["brokers"]
        self._addresses = [(row["host"], row["port"]) for row in rows if not row["is_fenced"]]
        return findings.of_brokers(rows)

    def _partitions(self) -> list[Finding]:
        topics = self._client.describe_topics()
        return findings.of_partitions(topics, self._min_isr, len(self._addresses), self._adding)

    def _adding(self) -> Mapping[tuple[str, int], int]:
        """Of running reassignments. Who may not list them gets all replicas that are out of sync."""
        try:
            return {key: len(move.adding) for key, move in ReplicaMoves(self._client).running().items()}
        except KafkaError:
            return {}

    def _min_isr(self, topics: set[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for topic in sorted(topics)[:TOPICS_AT_ONCE]:
            rows = self._client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
            for of in rows.values():
                found[topic] = int(of.get(topic, {}).get("min.insync.replicas", {}).get("value") or 1)
        return found

    def _controllers(self) -> list[Finding]:
        ((quorum,),) = [topic["partitions"] for topic in self._client.describe_metadata_quorum()["topics"]]
        return findings.of_controllers(quorum, _now_ms())

    def _health(self) -> list[Finding]:
        found = broker_health.described(self._client)
        return findings.of_health(found.rows, found.fail_safe)

    def _tier(self) -> list[Finding]:
        answers = reported(self._client)
        return of_tier(answers.brokers, answers.silent)

    def _transactions(self) -> list[Finding]:
        return findings.of_transactions(examined(self._client, None, lambda: blocked_bytes(self._client)))

    def _moving(self) -> list[Finding]:
        """Usage and groups, twice."""
        groups = {row["group_id"]: str(row["group_state"]) for row in self._client.list_groups()}
        usage = partial(described, self._client, tenants=True, partitions=False)
        before, lag_before = usage()[1], lags(self._client, sorted(groups))
        time.sleep(self._apart_s)
        read = sorted(group for group, state in groups.items() if state != findings.NO_MEMBERS)
        after, lag_after = usage()[1], lags(self._client, read)
        lag_after += [row for row in lag_before if groups[row.group] == findings.NO_MEMBERS]  # once says enough
        return [
            *findings.of_usage(after),
            *findings.of_throttling(before, after),
            *findings.of_groups(groups, lag_before, lag_after),
        ]

    def _fairness(self) -> list[Finding]:
        splits = described_shares(self._client, None)
        return findings.of_fairness(splits.tenants, splits.since_s * UNFAIR_SHARE)

    def _ends_of_certificates(self) -> list[Finding]:
        rows: list[dict[str, Any]] = []
        if self._certificates is not None and self._certificates.is_dir():
            from tidelog.cluster.certificates import describe  # noqa: PLC0415  heavy, and few clusters have any

            rows += [{"where": row["file"], "days_left": row["days_left"]} for row in describe(self._certificates)]
        if self._where.security.context is not None:
            rows += [row for address in self._addresses if (row := self._shown_by(address)) is not None]
        return findings.of_certificates(rows)

    def _shown_by(self, address: tuple[str, int]) -> dict[str, Any] | None:
        """What a broker's listener shows; None if it does not answer, which another look finds."""
        context = self._where.security.context
        assert context is not None
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, TLS_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=address[0]) as secured,
        ):
            ends = ssl.cert_time_to_seconds(str((secured.getpeercert() or {}).get("notAfter")))
            days = (ends - datetime.datetime.now(datetime.UTC).timestamp()) / 86_400
            return {"where": f"{address[0]}:{address[1]}", "days_left": int(days // 1)}
        return None


def _seen(name: str, look: Look) -> list[Finding]:
    try:
        return look()
    except Refused as error:
        reason = str(error)
    except KafkaError as error:
        reason = outcome_text(str(error))
    except (OSError, ValueError) as error:
        reason = str(error) or "no broker answers"
    todo = "it needs the rights of an operator, and brokers and a controller that answer"
    return [Finding(Severity.UNSEEN, name, f"could not be looked at: {reason}", todo)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
