"""`tidelog audit`: what changed, when, why and by whom."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from records.audit_event import AuditEvent, AuditKind, to_fields
from tidelog.admin.admin_client import ClusterOptions, Reach, client_of, reach
from tidelog.admin.internal_topics import Internal, is_internal, say_hidden
from tidelog.moments import milliseconds, utc
from tidelog.output import EXIT_FAILED, EXIT_USAGE, Json, fail, show

if TYPE_CHECKING:
    from tidelog.admin.audit_listing import Listing, Wanted

EVENTS_SHOWN = 1_000
NOTHING = "no such event; what was within the last minute may not be exported yet"
COLUMNS = ["time", "event", "topic", "partition", "cause", "actor", "reported_by", "before", "after"]


def audit(
    topic: Annotated[
        str, typer.Option(help="Of this topic; with @ID of one incarnation of it.", metavar="TOPIC[@ID]")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, help="With --topic: of this partition, and of the topic as a whole.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Of this kind, like log_start_moved; may be given several times.")
    ] = None,
    since: Annotated[str, typer.Option(help="From then on: ISO 8601, or milliseconds.")] = "",
    most: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = EVENTS_SHOWN,
    live: Annotated[
        bool, typer.Option("--live", help="Brokers' own events as __audit has them, also before they are exported.")
    ] = False,
    tier: Annotated[
        str | None, typer.Option("--tier", help="Read this object store, and ask no broker.", metavar="URI")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="With --tier: its id, if there are several.")] = None,
    internal: Internal = False,
    *,
    asked: ClusterOptions,
    as_json: Json = False,
) -> None:
    """List events of the audit in order of time, with --json one JSON object a line; docs/audit.md says what they mean.

    They come from the cluster's object store; without one, or with --live, from __audit. Exit code 1 when a part of
    the audit cannot be read, all others are listed; or when it has no event of the topic, and the topic does not exist.
    """
    from tidelog.admin.audit_listing import Listing  # noqa: PLC0415

    if live and tier is not None:
        fail("give one of --live and --tier", EXIT_USAGE)
    if cluster is not None and tier is None:
        fail("--cluster needs --tier", EXIT_USAGE)
    wanted = _wanted(topic, partition, kind or [], since)
    wanted.passes_over = None if internal or as_json or is_internal(wanted.topic) else is_internal
    listing = Listing(wanted, most)
    if tier is not None:
        _read_store(listing, tier, cluster)
    else:
        _ask(listing, reach(asked), live=live)
    if not listing.wanted.is_known:
        since_then = " since then" if since else ""
        listing.problems.append(f"the audit has no event of a topic {topic}{since_then}")
    _show(listing, as_json)
    for problem in listing.problems:
        print(f"tidelog: {problem}", file=sys.stderr)
    if listing.problems:
        raise typer.Exit(EXIT_FAILED)


def _wanted(topic: str, partition: int | None, kinds: list[str], since: str) -> Wanted:
    from tidelog.admin.audit_listing import Wanted  # noqa: PLC0415
    from tidelog.tier.access import split_name  # noqa: PLC0415

    if partition is not None and not topic:
        fail("--partition needs --topic", EXIT_USAGE)
    unknown = [kind for kind in kinds if kind not in list(AuditKind)]
    if unknown:
        fail(f"{', '.join(unknown)} is no kind of event; there are {', '.join(sorted(AuditKind))}", EXIT_USAGE)
    name, topic_id = split_name(topic)
    return Wanted(
        topic=name,
        topic_ids=set() if topic_id is None else {topic_id.hex()},
        of_one=topic_id is not None,
        partition=partition,
        kinds=frozenset(kinds),
        since_ms=milliseconds("--since", since) if since else 0,
    )


def _read_store(listing: Listing, uri: str, cluster: str | None) -> None:
    from kraft.rebuilding.rebuild import CannotRebuild  # noqa: PLC0415
    from object_store.blocking import BlockingStore  # noqa: PLC0415
    from object_store.errors import NoStore, StoreError  # noqa: PLC0415
    from object_store.uri import InvalidStoreUri  # noqa: PLC0415
    from tidelog.admin.audit_listing import read_store  # noqa: PLC0415
    from tidelog.tier.rebuild import choose_cluster  # noqa: PLC0415
    from tiering.bucket.keys import TierRoot  # noqa: PLC0415

    try:
        with BlockingStore(uri) as opened:
            root = TierRoot(opened.wait(lambda: choose_cluster(opened.store, cluster)))
            opened.wait(lambda: read_store(opened.store, root, listing))
    except InvalidStoreUri as error:
        fail(f"--tier: {error}", EXIT_USAGE)
    except NoStore as error:
        fail(f"--tier: {error.store}: {error.reason}", EXIT_USAGE)
    except (StoreError, CannotRebuild) as error:
        fail(str(error))


def _ask(listing: Listing, where: Reach, *, live: bool) -> None:
    from kafka import KafkaConsumer  # noqa: PLC0415

    from kraft.topic_names import AUDIT_TOPIC  # noqa: PLC0415
    from tidelog.admin.audit_listing import NotAnswering, read_store, read_topic  # noqa: PLC0415
    from tidelog.tier.access import ask_brokers, live_topics, opened_store  # noqa: PLC0415

    with client_of(where) as client:
        answers = ask_brokers(client)
        listing.wanted.knows(topic.name for topic in live_topics(client).values())
        if answers.store is not None and not live:
            with opened_store(answers, None) as (opened, root):
                opened.wait(lambda: read_store(opened.store, root, listing))
            return
        consumer = KafkaConsumer(**where.options(), group_id=None)
        try:
            read_topic(consumer, AUDIT_TOPIC, listing)
        except NotAnswering as error:
            fail(str(error))
        finally:
            consumer.close()


def _show(listing: Listing, as_json: bool) -> None:
    events = listing.events()
    if as_json:
        for event in events:
            print(json.dumps(to_fields(event)))
        return
    show([_row(event) for event in events], as_json=False, columns=COLUMNS, empty=NOTHING)
    say_hidden(listing.wanted.passed_over, "event of an internal topic is", "events of internal topics are")
    if listing.left_out:
        print(f"{listing.left_out:,} earlier events are left out; --most shows more")


def _row(event: AuditEvent) -> dict[str, Any]:
    return {
        "time": utc(event.wall_ms),
        "event": event.event,
        "topic": event.topic or event.topic_id or None,
        "partition": None if event.partition < 0 else event.partition,
        "cause": event.cause or None,
        "actor": event.actor or None,
        "reported_by": event.source if event.node < 0 else f"{event.source} {event.node}",
        "before": event.before or None,
        "after": event.after or None,
    }
