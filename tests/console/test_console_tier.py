"""The page of the tier, from what brokers report."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from console.pages.tier import SHOWN, reported
from console.web.rendering import templates
from tests.console.fake_cluster import FakeClient, log_in, visitor
from tiering.bucket.verified import Run, TopicOutcome, Verifications
from tiering.shard.description import BrokerTier, LedStatus, StoreStatus, encode
from wire.messages import DescribeTierResponse

HOSTILE = "<script>alert(1)</script>"


def led(topic: str, number: int) -> LedStatus:
    return LedStatus(
        topic=topic, topic_id=f"{number:032x}", partition=0, leader_epoch=0, log_start_offset=0,
        local_log_start_offset=0, high_watermark=0, log_end_offset=0, claimed=True,
    )  # fmt: skip


def page(*verified: Verifications | None) -> str:
    """What people see, where each broker reports one of these."""
    store, partitions = StoreStatus(uri="file:///tier", answers=True), [led("flights", 1), led("planes", 2)]
    reports = [
        BrokerTier(broker_id=at, cluster_id="c", store=store, partitions=[] if at else partitions, verified=one)
        for at, one in enumerate(verified)
    ]
    left = list(reports)

    def describe(_: Any) -> DescribeTierResponse:
        return DescribeTierResponse(
            throttle_time_ms=0, error_code=0, error_message=None, description=encode(left.pop(0))
        )

    rows = {"brokers": [{"broker_id": at, "is_fenced": False} for at in range(len(reports))]}
    client = FakeClient({"DescribeTierRequest": describe}, {"describe_cluster": lambda: rows})
    with visitor(client) as browser:
        log_in(browser)
        text = str(browser.get("/tier").text)
    assert HOSTILE not in text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_the_last_verification_of_all_and_of_a_topic() -> None:
    whole = Run(began_ms=1_000, ended_ms=61_000, deep=True, segments=3, records=5_000, bytes=80_000)
    topic = TopicOutcome(topic="planes", topic_id=f"{2:032x}", began_ms=70_000, ended_ms=71_000, problems=4)
    part = Run(began_ms=70_000, ended_ms=71_000, topics=(HOSTILE,), topic_count=1, problems=4)
    older = Verifications(cluster_id="c", runs=(whole,))
    text = page(older, None, Verifications(cluster_id="c", runs=(part, whole), topics=(topic,)))
    assert "Last verification topic &lt;script&gt;" in text
    assert "4 problems ended 1970-01-01T00:01:11Z after 1.0 s, every batch" in text
    assert "Earlier verification everything: no damage ended 1970-01-01T00:01:01Z after 60.0 s, every record" in text
    assert "1970-01-01 00:01:11 4 problems" in text[text.index("planes") :], "in the topic's line"
    assert "1970" not in text[text.index(" flights ") : text.index(" planes ")], "of which none is known"


def test_a_tier_that_was_never_verified() -> None:
    assert "Last verification None is known." in page(None)


def test_of_a_check_the_session_keeps_what_is_shown() -> None:
    rows = [
        {
            "topic": "t",
            "partition": at,
            "what": "objects",
            "disagreement": "missing",
            "harmless": at % 2 == 0,
            "more": 1,
        }
        for at in range(SHOWN + 50)
    ]
    kept = reported(msgspec.json.encode({"partitions": 9, "store": "answers", "disagreements": rows}))
    assert kept is not None
    assert (kept.partitions, kept.store, kept.total, len(kept.shown)) == (9, "answers", SHOWN + 50, SHOWN)
    assert (kept.shown[0].harmless, kept.shown[1].partition) == (True, 1)
    shown = templates(str).get_template("_tier_checked.html").render(checked={"at_ms": 0, "topic": "", "report": kept})
    assert shown.count("<li>") == SHOWN
    assert f"{SHOWN + 50} disagreements" in shown
    assert reported(b"") is None
    assert reported(b"[]") is None
