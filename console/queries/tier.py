"""The tier as the brokers report it: the store, each topic, and deleted topics that can be restored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from console.access.trouble import Trouble
from tidelog.admin.library_client import AdminClient
from tidelog.tier.access import answers_of
from tidelog.tier.verified import last_of_topics, newest, outcome_text, result_text, runs_to_show

KEY, FRESH_S = "tier", 5.0


class Verified(NamedTuple):
    """A verification's outcome. `what` was covered; `result` is short, `text` says all of it."""

    what: str
    ended_ms: int
    problems: int
    result: str
    text: str


class TopicTier(NamedTuple):
    """Sums over the partitions that answer. `troubles`: what partitions wait for or fail at, each once. `verified` is
    None where no verification of the topic is known."""

    name: str
    partitions: int
    tier_bytes: int
    waiting_bytes: int
    segments: int
    deleting: int
    troubles: Sequence[str]
    verified: Verified | None


class Deleted(NamedTuple):
    name: str
    topic_id: str
    partitions: int
    deleted_ms: int
    gone_ms: int


class Store(NamedTuple):
    """`trouble`: why it does not answer or may not be written, empty if all is well; `since_ms`: since when."""

    uri: str
    trouble: str
    since_ms: int


class Tier(NamedTuple):
    """`store` is None for a cluster without a tier. `verified` has the last verification first."""

    store: Store | None
    topics: Sequence[TopicTier]
    deleted: Sequence[Deleted]
    silent: Sequence[int]
    swept_objects: int
    verified: Sequence[Verified]


def tier(client: AdminClient) -> Tier:
    """Raises Trouble if no broker answers, and KafkaError."""
    answers = answers_of(client)
    if not answers.brokers:
        raise Trouble(f"no broker reports its tier: {answers.reason or 'all are down'}")
    sums: dict[str, list[int]] = {}
    troubles: dict[str, dict[str, None]] = {}
    deleted: dict[str, Deleted] = {}
    ids: dict[str, str] = {}
    for broker in answers.brokers:
        for led in broker.partitions:
            counts = (1, led.tier_bytes, led.copy_lag_bytes, led.segments, led.deleting)
            sums[led.topic] = [old + new for old, new in zip(sums.get(led.topic, [0] * 5), counts, strict=True)]
            said = (led.waits_for, led.manifest_trouble, led.read_trouble if led.unreadable else None)
            ids[led.topic] = led.topic_id
            troubles.setdefault(led.topic, {}).update(dict.fromkeys(one for one in said if one))
        for one in broker.dropped:
            old = deleted.get(one.topic_id)
            count, gone = (1, one.gone_ms) if old is None else (old.partitions + 1, min(old.gone_ms, one.gone_ms))
            deleted[one.topic_id] = Deleted(one.topic, one.topic_id, count, one.dropped_ms, gone)
    seen = newest(answers.brokers)
    verified = {} if seen is None else {key: _verified(one.topic, one) for key, one in last_of_topics(seen).items()}
    topics = [
        TopicTier(name, of[0], of[1], of[2], of[3], of[4], tuple(troubles[name]), verified.get(ids[name]))
        for name, of in sorted(sums.items())
    ]
    store = answers.store
    shown = None
    if store is not None:
        trouble = store.stale or ("" if store.answers else store.reason or "it does not answer") or store.export_trouble
        shown = Store(store.uri, trouble, store.since_ms or store.export_trouble_since_ms)
    swept = sum(broker.sweep.objects for broker in answers.brokers if broker.sweep is not None)
    runs = [] if seen is None else [_verified(run.scope, run) for run in runs_to_show(seen)]
    return Tier(shown, topics, sorted(deleted.values()), answers.silent, swept, runs)


def _verified(what: str, outcome: Any) -> Verified:
    return Verified(what, outcome.ended_ms, outcome.problems, result_text(outcome), outcome_text(outcome))
