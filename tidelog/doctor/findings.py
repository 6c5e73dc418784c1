"""What is wrong in a cluster, from what its nodes say of themselves. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from tidelog.admin.group_lag import Behind
from tidelog.admin.transaction_doctor import Class, Examined, Place

NAMED = 5  # of partitions, groups and the like in one finding; the rest is counted
DISK_WARNING, DISK_CRITICAL = 0.85, 0.95
LOAD_WARNING = 0.9
CONTROLLER_SILENT_MS = 5_000
TIER_BEHIND_BYTES = 1 << 30
EXPIRES_WARNING_DAYS, EXPIRES_CRITICAL_DAYS = 30, 7
NO_MEMBERS = "Empty"
GROWTH_RECORDS = 100  # between two looks at a group; less is the traffic of a moment
Row = Mapping[str, Any]


class Severity(IntEnum):
    """NOTE: worth knowing. UNSEEN: a look was refused or not answered. WARNING: will hurt. CRITICAL: hurts now."""

    NOTE = 0
    UNSEEN = 1
    WARNING = 2
    CRITICAL = 3


class Finding(NamedTuple):
    """`check` names what was looked at, `todo` what an operator does about it."""

    severity: Severity
    check: str
    what: str
    todo: str


def named(things: Iterable[Any]) -> str:
    """The first few, and how many there are besides."""
    listed = [str(one) for one in things]
    more = len(listed) - NAMED
    return ", ".join(listed[:NAMED]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, one: str, more: str) -> str:
    """`1 group has …`, `2 groups have …`."""
    return f"{count} {one if count == 1 else more}"


def nodes(kind: str, ids: Sequence[int]) -> str:
    """`broker 1`, `brokers 1, 2`."""
    return f"{kind if len(ids) == 1 else f'{kind}s'} {named(ids)}"


def of_brokers(rows: Sequence[Row]) -> list[Finding]:
    fenced = sorted(int(row["broker_id"]) for row in rows if row["is_fenced"])
    if not fenced:
        return []
    does, why, todo = "does not serve", "it is down", "start it again; its log and `tidelog ps` say why it ended"
    if len(fenced) > 1:
        does, why = "do not serve", "they are down"
        todo = "start them again; their logs and `tidelog ps` say why they ended"
    what = f"{nodes('broker', fenced)} of {len(rows)} {does}: {why}, or cut off from the controllers"
    return [Finding(Severity.CRITICAL, "brokers", what, todo)]


def of_partitions(
    topics: Sequence[Row],
    min_isr: Callable[[set[str]], Mapping[str, int]],
    brokers: int,
    adding: Callable[[], Mapping[tuple[str, int], int]],
) -> list[Finding]:
    """`min_isr` looks the setting up for the topics that need it, `adding` how many replicas reassignments add to
    partitions, which lack nothing while these copy (KIP-352). Each is asked only where replicas are out of sync."""
    offline, under, single = list[Place](), dict[Place, Row](), set[str]()
    for topic in topics:
        for row in topic["partitions"]:
            place = Place(topic["name"], row["partition_index"])
            if row["leader_id"] < 0:
                offline.append(place)
            elif len(row["isr_nodes"]) < len(row["replica_nodes"]):
                under[place] = row
            if len(row["replica_nodes"]) == 1 and brokers > 1:
                single.add(topic["name"])
    added = adding() if under else {}
    under = {
        place: row
        for place, row in under.items()
        if len(row["isr_nodes"]) < len(row["replica_nodes"]) - added.get(place, 0)
    }
    least = min_isr({place.topic for place in under}) if under else {}
    refusing = [one for one, row in under.items() if len(row["isr_nodes"]) < least.get(one.topic, 1)]
    behind = [one for one in under if one not in set(refusing)]
    found = []
    if offline:
        what = f"{counted(len(offline), 'partition has', 'partitions have')} no leader: {named(offline)}"
        todo = "start a broker that has them in sync; if all are lost, `tidelog topics elect --unclean` loses records"
        found.append(Finding(Severity.CRITICAL, "partitions", what, todo))
    if refusing:
        many = counted(len(refusing), "partition refuses", "partitions refuse")
        what = f"{many} acks=all, too few replicas are in sync: {named(refusing)}"
        found.append(Finding(Severity.CRITICAL, "partitions", what, "start the brokers that are down or slow"))
    if behind:
        what = f"{counted(len(behind), 'partition lacks', 'partitions lack')} in-sync replicas: {named(behind)}"
        todo = "see the brokers below or above; replicas of a running broker catch up by themselves"
        found.append(Finding(Severity.WARNING, "partitions", what, todo))
    if single:
        what = f"{counted(len(single), 'topic has', 'topics have')} one replica: {named(sorted(single))}"
        todo = "`tidelog topics reassign` gives them more; the loss of one broker takes them away"
        found.append(Finding(Severity.NOTE, "partitions", what, todo))
    return found


def of_controllers(quorum: Row, now_ms: int) -> list[Finding]:
    """Of the one partition that DescribeQuorum describes."""
    voters = quorum["current_voters"]
    silent = [row["replica_id"] for row in voters if _silent(row, quorum["leader_id"], now_ms)]
    if not silent:
        return []
    left = len(voters) - len(silent)
    needed = len(voters) // 2 + 1
    does = "does" if len(silent) == 1 else "do"
    answering = f"{needed} are needed, {left} {'is' if left == 1 else 'are'} left"
    what = f"{nodes('controller', sorted(silent))} of {len(voters)} {does} not answer; {answering}"
    severity = Severity.CRITICAL if left <= needed else Severity.WARNING
    todo = f"start {'it' if len(silent) == 1 else 'them'} again"
    if left == needed:
        todo += ": with one less, no metadata can change"
    return [Finding(severity, "controllers", what, todo)]


def _silent(row: Row, leader: int, now_ms: int) -> bool:
    heard = row["last_fetch_timestamp"]
    return bool(row["replica_id"] != leader and (heard < 0 or now_ms - heard > CONTROLLER_SILENT_MS))


def of_health(rows: Sequence[Row], fail_safe: str) -> list[Finding]:
    found = []
    for row in rows:
        if row["state"] in ("healthy", "fenced") and not row["silent"]:
            continue
        if row["state"] == "healthy":
            what = f"broker {row['broker']} is silent"
            found.append(Finding(Severity.WARNING, "health", what, "look at its log and its machine"))
            continue
        what = f"broker {row['broker']} is {row['state']}{': ' + row['cause'] if row['cause'] else ''}"
        todo = "docs/health.md says what each cause means; `tidelog brokers promote` ends what an operator began"
        found.append(Finding(Severity.WARNING, "health", what, todo))
    if fail_safe:
        todo = "docs/health.md: the controller puts no other broker aside until this ends"
        found.append(Finding(Severity.WARNING, "health", f"nothing is done about sick brokers: {fail_safe}", todo))
    return found


def of_usage(rows: Sequence[Row]) -> list[Finding]:
    """Disks and load of brokers."""
    found = []
    for row in rows:
        used, size = row["disk_used_bytes"], row["disk_size_bytes"]
        if size > 0 and used / size >= DISK_WARNING:
            what = f"the disk of broker {row['broker']} is {100 * used / size:.0f} % full"
            todo = 'shorten retention, tier topics, or add a broker; docs/operations.md, "The disk fills"'
            severity = Severity.CRITICAL if used / size >= DISK_CRITICAL else Severity.WARNING
            found.append(Finding(severity, "disks", what, todo))
        if row["load"] is not None and row["load"] >= LOAD_WARNING:
            what = f"broker {row['broker']} is at {100 * row['load']:.0f} % of its load"
            todo = "`tidelog load --tenants` says by whom; `tidelog balance status` whether the balancer helps"
            found.append(Finding(Severity.WARNING, "load", what, todo))
    return found


def of_throttling(before: Sequence[Row], after: Sequence[Row]) -> list[Finding]:
    """Of two looks at brokers' usage: who waited between them, and why."""
    waited: dict[str, dict[str, int]] = {}
    for sign, rows in ((-1, before), (1, after)):
        for broker in rows:
            for tenant in broker["tenants"]:
                for reason, ms in tenant["throttled_ms"].items():
                    of = waited.setdefault(tenant["tenant"], {})
                    of[reason] = of.get(reason, 0) + sign * ms
    found = []
    for tenant, reasons in sorted(waited.items()):
        waits = [f"{reason} {ms} ms" for reason, ms in sorted(reasons.items()) if ms > 0]
        if waits:
            who = "operators' clients wait" if tenant == "-" else f"tenant {tenant} waits"
            what = f"{who} for: {', '.join(waits)}"
            todo = "docs/quotas.md says what each reason means; `tidelog quotas alter` or `tenants alter` raise a quota"
            found.append(Finding(Severity.NOTE, "throttling", what, todo))
    return found


def of_fairness(rows: Sequence[Row], budget_s: float) -> list[Finding]:
    unfair = [row["tenant"] for row in rows if row["unfair_s"] > budget_s]
    if not unfair:
        return []
    what = f"{counted(len(unfair), 'tenant', 'tenants')} waited longer than they had to: {named(unfair)}"
    return [Finding(Severity.WARNING, "throttling", what, "`tidelog quotas shares TENANT` says where their quota is")]


def of_transactions(examined: Examined) -> list[Finding]:
    rows, found = examined.found, []
    for kind, severity, one, more, todo in (
        (Class.HANGING, Severity.CRITICAL,
         "transaction hangs: no coordinator knows it, it holds readers back for ever",
         "transactions hang: no coordinator knows them, they hold readers back for ever",
         "`tidelog transactions doctor`, then `abort --topic … --partition … --producer-id …`"),
        (Class.LATE, Severity.WARNING, "transaction is past its timeout", "transactions are past their timeouts",
         "look at their coordinators' logs"),
        (Class.PREPARED, Severity.WARNING,
         "transaction is decided and not ended: a partition it waits for has no leader",
         "transactions are decided and not ended: a partition they wait for has no leader",
         "start the brokers of the partitions that `tidelog transactions doctor` names"),
    ):  # fmt: skip
        those = [row for row in rows if row.kind is kind and (kind is not Class.PREPARED or row.waits_for)]
        if those:
            waiting = f"{sum(row.records_behind for row in those)} records"
            if not examined.tier_unknown:
                waiting += f" and {sum(row.tier_bytes or 0 for row in those)} bytes"
            names = named(row.transactional_id or f"producer {row.producer_id}" for row in those)
            what = f"{counted(len(those), one, more)}; {waiting} wait: {names}"
            found.append(Finding(severity, "transactions", what, todo))
    if examined.unanswered:
        unknown = [f"producer {row.producer_id}" for row in rows if row.kind is Class.UNKNOWN]
        hang = f"; whether these transactions hang is unknown: {named(unknown)}" if unknown else ""
        what = f"could not be looked at in whole: {named(examined.unanswered)}{hang}"
        todo = "start the brokers of what is named, or ask as a user who may see it; then look again"
        found.append(Finding(Severity.UNSEEN, "transactions", what, todo))
    return found


def of_groups(states: Mapping[str, str], before: Sequence[Behind], after: Sequence[Behind]) -> list[Finding]:
    """Of two looks at groups' lag. A group without members whose topics go on is behind for ever."""
    first = {(row.group, row.place): row for row in before}
    growth: dict[str, int] = {}
    lag: dict[str, int] = {}
    for row in after:
        lag[row.group] = lag.get(row.group, 0) + (row.lag or 0)
        old = first.get((row.group, row.place))
        if old is not None and old.lag is not None and row.lag is not None:
            growth[row.group] = growth.get(row.group, 0) + row.lag - old.lag
    idle = sorted(group for group, records in lag.items() if records and states.get(group) == NO_MEMBERS)
    growing = sorted(
        group for group, records in growth.items() if records >= GROWTH_RECORDS and states.get(group) != NO_MEMBERS
    )
    found = []
    if idle:
        many = counted(len(idle), "group has", "groups have")
        what = f"{many} no members and unread records: {named(f'{one} ({lag[one]})' for one in idle)}"
        found.append(Finding(Severity.NOTE, "groups", what, "start their consumers, or `tidelog groups delete`"))
    if growing:
        many = counted(len(growing), "group", "groups")
        what = f"the lag of {many} grows: {named(f'{one} (+{growth[one]})' for one in growing)}"
        found.append(Finding(Severity.WARNING, "groups", what, "add members, up to one for each partition"))
    return found


def of_certificates(rows: Sequence[Row]) -> list[Finding]:
    """Rows with `where` and `days_left`."""
    found = []
    for row in rows:
        days = row["days_left"]
        if days <= EXPIRES_WARNING_DAYS:
            severity = Severity.CRITICAL if days <= EXPIRES_CRITICAL_DAYS else Severity.WARNING
            left = counted(days, "day", "days")
            what = f"the certificate of {row['where']} {'has expired' if days < 0 else f'ends in {left}'}"
            todo = "`tidelog certificates make` renews it, brokers read it while they run: docs/security.md"
            found.append(Finding(severity, "certificates", what, todo))
    return found


def of_balance(status: Row) -> list[Finding]:
    found = []
    if status["uneven"]:
        goals = named(sorted({f"{row['goal']} of broker {row['broker_id']}" for row in status["uneven"]}))
        todo = "`tidelog balance plan` shows what would move; docs/balancing.md"
        found.append(Finding(Severity.NOTE, "balance", f"brokers are uneven: {goals}", todo))
    if status["waits"]:
        todo = "`tidelog balance status` shows it; docs/balancing.md"
        found.append(Finding(Severity.NOTE, "balance", f"the balancer waits: {status['waits']}", todo))
    if not status["enabled"]:
        todo = "`tidelog balance resume`"
        found.append(Finding(Severity.NOTE, "balance", "the balancer is paused or switched off", todo))
    return found


def of_features(features: Mapping[str, Row]) -> list[Finding]:
    """Levels that all nodes support and that are not raised."""
    low = [
        f"{name} {row.get('finalized', (0, 0))[1]} of {row['supported'][1]}"
        for name, row in sorted(features.items())
        if row.get("finalized", (0, 0))[1] < row["supported"][1]
    ]
    if not low:
        return []
    todo = "once all nodes run this version: `kafka-features.sh … upgrade --feature NAME=LEVEL`"
    return [Finding(Severity.NOTE, "features", f"not raised to what this version supports: {named(low)}", todo)]
