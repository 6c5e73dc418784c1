"""A page that lies open for a day: what it keeps does not grow with its polls."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from bench.console_program import ConsoleProgram
from bench.embedded import EmbeddedCluster
from tests.console_browser.test_console_actions import produce

WARM, MORE = 25, 100
STEP_MS, SETTLE_MS = 21_000, 500
A_DAY = 24 * 3_600 // 10  # polls of a page that asks each ten seconds
HEAP_OF_A_DAY_MAX = 40 << 20
TOPIC = "lies-open"
FOLLOWED_ROWS = 500


class Kept(NamedTuple):
    """What a page holds once its garbage is gone."""

    nodes: int
    listeners: int
    heap: int


def kept(page: Any) -> Kept:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
    found = {one["name"]: int(one["value"]) for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return Kept(found["Nodes"], found["JSEventListeners"], found["JSHeapUsedSize"])


def poll(page: Any, times: int) -> None:
    """The page's clock goes on until it has asked `times` times."""
    for _ in range(times):
        with page.expect_response(lambda answer: "x-console-poll" in answer.request.headers) as asked:
            page.clock.run_for(STEP_MS)
        assert asked.value.status == 200
        asked.value.finished()
        page.clock.run_for(SETTLE_MS)


@pytest.fixture(scope="module", autouse=True)
def _topic_and_group(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", TOPIC, "--partitions", "20")
    produce(cluster, TOPIC, [("key", b"value")])
    cluster.command_of("consume", TOPIC, "--group", TOPIC, "--exit")


@pytest.mark.parametrize("path", ["/", f"/topics/{TOPIC}", "/groups", "/balance"])
def test_a_page_that_lies_open(page: Any, console: ConsoleProgram, path: str) -> None:
    page.clock.install()
    page.goto(console.address + path)
    poll(page, WARM)
    before = kept(page)
    poll(page, MORE)
    after = kept(page)
    assert after.nodes - before.nodes < MORE // 10
    assert after.listeners - before.listeners < MORE // 10
    assert (after.heap - before.heap) * A_DAY / MORE < HEAP_OF_A_DAY_MAX


def test_a_list_that_is_followed(page: Any, console: ConsoleProgram, cluster: EmbeddedCluster) -> None:
    page.clock.install()
    page.goto(f"{console.address}/topics/{TOPIC}/records")
    page.wait_for_selector("tr.end")
    page.get_by_role("button", name="Follow live").click()
    page.wait_for_selector("#tail-state")
    page.clock.run_for(SETTLE_MS)
    counts = []
    for _ in range(3):
        produce(cluster, TOPIC, [(f"key-{number}", b"value") for number in range(FOLLOWED_ROWS)])
        poll(page, 3)
        counts.append((page.locator("#tail tbody tr").count(), kept(page)))
    assert [rows for rows, _ in counts] == [FOLLOWED_ROWS] * 3
    assert counts[2][1].nodes - counts[1][1].nodes < 10
