"""What is wrong with the tier, from brokers' reports. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.doctor.findings import TIER_BEHIND_BYTES, Finding, Severity, counted, named, nodes
from tidelog.moments import utc
from tidelog.tier import verified

if TYPE_CHECKING:
    from tiering.bucket.verified import Verifications
    from tiering.shard.description import BrokerTier, LedStatus, StoreStatus


def of_tier(brokers: Sequence[BrokerTier], silent: Sequence[int]) -> list[Finding]:
    found = []
    if silent:
        todo = "see the finding on brokers; what they lead is not in this list"
        what = f"{nodes('broker', silent)} {'does' if len(silent) == 1 else 'do'} not report the tier"
        found.append(Finding(Severity.UNSEEN, "tier", what, todo))
    for broker in brokers:
        if broker.store is not None:
            found += _of_store(broker.broker_id, broker.store)
    found += _of_partitions([led for broker in brokers for led in broker.partitions])
    return found + _of_verifications(verified.newest(brokers))


def _of_store(broker: int, store: StoreStatus) -> list[Finding]:
    found = []
    if store.stale is not None:
        todo = "this cluster was replaced by a rebuilt one: stop it"
        found.append(Finding(Severity.CRITICAL, "tier", f"broker {broker} may write nothing more: {store.stale}", todo))
    if not store.answers:
        since = f" since {utc(store.since_ms)}" if store.since_ms else ""
        what = f"the object store does not answer broker {broker}{since}: {store.reason}"
        todo = "local disks keep what is not copied and fill up meanwhile; docs/object-stores.md"
        found.append(Finding(Severity.CRITICAL, "tier", what, todo))
    elif store.refused_since_ms:
        what = f"no copy of broker {broker} has succeeded since {utc(store.refused_since_ms)}: {store.reason}"
        found.append(Finding(Severity.CRITICAL, "tier", what, "look at the rights and the room of the bucket"))
    if store.export_trouble:
        todo = "`tidelog spark export` and docs/export.md"
        found.append(
            Finding(Severity.WARNING, "tier", f"exports fail at broker {broker}: {store.export_trouble}", todo)
        )
    return found


def _of_partitions(partitions: Sequence[LedStatus]) -> list[Finding]:
    found = []
    unreadable = [f"{led.topic}-{led.partition}" for led in partitions if led.unreadable]
    if unreadable:
        what = f"reads of the tier fail in {counted(len(unreadable), 'partition', 'partitions')}: {named(unreadable)}"
        found.append(Finding(Severity.CRITICAL, "tier", what, "`tidelog tier check` says which objects are damaged"))
    failing = [f"{led.topic}-{led.partition}" for led in partitions if led.failures or led.manifest_trouble]
    if failing:
        what = f"copies or manifests fail in {counted(len(failing), 'partition', 'partitions')}: {named(failing)}"
        found.append(Finding(Severity.WARNING, "tier", what, "`tidelog tier status` has the reason of each"))
    behind = [led for led in partitions if led.copy_lag_bytes >= TIER_BEHIND_BYTES]
    if behind:
        worst = sorted(behind, key=lambda led: -led.copy_lag_bytes)
        total = sum(led.copy_lag_bytes for led in behind)
        what = (
            f"{counted(len(behind), 'partition waits', 'partitions wait')} to be copied, {total / 2**30:.1f} GiB: "
            + named(f"{led.topic}-{led.partition}" for led in worst)
        )
        todo = "`tidelog tier status` says what they wait for; a transaction may hold them, or the store is slow"
        found.append(Finding(Severity.WARNING, "tier", what, todo))
    return found


def _of_verifications(seen: Verifications | None) -> list[Finding]:
    """Damage stays a finding until a verification that looks as closely finds none."""
    runs = [run for run in seen.runs if run.problems] if seen is not None else []
    topics = sorted({one.topic for one in seen.topics if one.problems}) if seen is not None else []
    if not runs and not topics:
        return []
    what = "a verification found damage"
    if runs:
        count = counted(runs[0].problems, "problem", "problems")
        what = f"the verification of {runs[0].scope} that ended {utc(runs[0].ended_ms)} found {count}"
    what += f" in {named(topics)}" if topics else ""
    todo = "`tidelog spark verify --report DIR` says which objects, docs/spark-verify.md"
    return [Finding(Severity.WARNING, "tier", what, todo)]
