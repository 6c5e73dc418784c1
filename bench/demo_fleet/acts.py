"""The acts of the demonstration. Each one shows what an operator would see, and claims what must be true of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from bench.demo_fleet.story import Story
from bench.demo_fleet.tenants import RATE, Noise, Tenants
from bench.embedded import EmbeddedCluster
from bench.paced_load import quantile
from bench.stalling import RUNS_S, STOPPED_S, Stalling

NOISY = "amber"
QUOTA, OFFERED = 400_000, 6_000_000
MEGABYTE = 1_000_000
STILL_S, LOUD_S, SETTLED_S, ROUNDS = 12.0, 18.0, 1.0, 3
SAVED_UP_S = 3.0
"""The window of the quota here: as long a tenant that was still may use what it had saved up."""
P99_TIMES_MAX, QUOTA_TIMES_MAX = 1.5, 1.5
SICK = 1
SICK_S, WELL_S, ASIDE_S, STALLED_S = 60.0, 60.0, 8.0, 3.0
FILLED_S, FAIR_MIN = 60.0, 0.8
AUDIT_S = 20.0
WARM_RECORDS = 10 * RATE


class Scene(NamedTuple):
    cluster: EmbeddedCluster
    tenants: Tenants
    story: Story


def at_work(scene: Scene) -> None:
    story, tenants = scene.story, scene.tenants
    story.act("Twelve tenants at work")
    story.show("cells", "list")
    story.until(
        "every tenant writes",
        lambda: all(tenants.acknowledged(one) >= WARM_RECORDS for one in tenants.clients) or None,
        60.0,
    )
    story.say(f"Each tenant writes {RATE} records a second with acks=all, to a topic of three replicas.")


def noisy_tenant(scene: Scene) -> None:
    """Its quota holds it, and its neighbours in the cell notice nothing."""
    story, tenants = scene.story, scene.tenants
    cell = tenants.cells[NOISY]
    near = tenants.in_cell(cell, but=NOISY)
    story.act(f"The tenant {NOISY} turns noisy")
    story.say(f"It lives in cell {cell} with {', '.join(near)}.")
    story.run("tenants", "alter", NOISY, "--limit", f"ingress.bytes.per.second={QUOTA}")
    story.say(f"{NOISY} offers {OFFERED / MEGABYTE:.0f} MB/s. Its quota is {QUOTA / MEGABYTE:.2f} MB/s.")
    story.say(
        f"It is still and loud in turn, {ROUNDS} times, so that whatever else this machine does meets both alike."
    )
    with Noise(tenants.clients[NOISY], OFFERED) as noise:
        found = _in_turn(scene, noise, near)
    story.claim(
        found.rate <= QUOTA_TIMES_MAX * QUOTA,
        f"{NOISY} is held to {found.rate / MEGABYTE:.2f} MB/s while it is loud, with what it may use at once",
    )
    told = [ms for ms in noise.throttled_ms if ms]
    longest_s = max(told, default=0.0) / 1000
    story.claim(
        bool(told) and not noise.failed,
        f"its client was told {len(told):,} times to wait, {longest_s:.1f} s at most, and saw no error",
    )
    before, during = quantile(found.still, 99), quantile(found.held, 99)
    story.say(
        f"Its neighbours wait {quantile(found.at_first, 99):.1f} ms (p99) in its first {SAVED_UP_S:.0f} s, in which it "
        "uses what it had saved up."
    )
    story.claim(
        during <= P99_TIMES_MAX * before,
        f"while it is held they wait {during:.1f} ms (p99 of {len(found.held):,} requests), {during / before:.2f} "
        f"times as long as the {before:.1f} ms while it is still (of {len(found.still):,})",
        of_times=True,
    )
    story.say("Who has set its quota, and since when is it held?")
    story.show_audit("tenant_changed", lambda event: "limits" in event["after"] and bool(event["before"]), AUDIT_S)
    story.show_audit("shares_began", lambda event: event["after"]["name"] == NOISY, AUDIT_S)


class InTurn(NamedTuple):
    """Milliseconds that the neighbours' records waited while a tenant was still, when it had just become loud, and
    while it was held to its quota; and the bytes per second that it was given while it was loud."""

    still: list[float]
    at_first: list[float]
    held: list[float]
    rate: float


def _in_turn(scene: Scene, noise: Noise, near: Collection[str]) -> InTurn:
    story, tenants = scene.story, scene.tenants
    found = InTurn([], [], [], 0.0)
    for number in range(1, ROUNDS + 1):
        began = time.monotonic()
        time.sleep(STILL_S)
        turned = time.monotonic()
        with noise.loud():
            time.sleep(LOUD_S)
            ended = time.monotonic()
            if number == ROUNDS:
                story.show("load", "--tenants", rows=lambda line: line.split()[0] == NOISY)
                story.show("quotas", "shares", NOISY)
        time.sleep(SETTLED_S)  # what was sent in this round is answered then, so the longest waits count too
        spans = (began, turned), (turned, turned + SAVED_UP_S), (turned + SAVED_UP_S, ended)
        still, at_first, held = (tenants.waits(near, *span) for span in spans)
        rate = found.rate + noise.rate(turned, ended) / ROUNDS
        found = InTurn(found.still + still, found.at_first + at_first, found.held + held, rate)
        waits = [f"{quantile(of, 50):.1f} ms (p50) and {quantile(of, 99):.1f} ms (p99)" for of in (still, held)]
        story.say(f"{number}. Its neighbours wait {waits[0]} while it is still, {waits[1]} while it is held.")
    return found


def slow_broker(scene: Scene) -> None:
    """It is put aside, and returns."""
    story, tenants = scene.story, scene.tenants
    near = tenants.in_cell(_cell_of(story, SICK)["cell"])
    of_sick = _rows_of(SICK)
    story.act(f"Broker {SICK} is slow, but not dead")
    before = tenants.p99_of(near, STALLED_S)
    with Stalling(pid_of(scene.cluster, SICK)):
        began = time.monotonic()
        story.say(f"It stands still for {STOPPED_S * 1000:.0f} of every {(STOPPED_S + RUNS_S) * 1000:.0f} ms.")
        sick = story.until(f"broker {SICK} is put aside", lambda: _health(story, SICK, is_healthy=False), SICK_S)
        aside_s = time.monotonic() - began
        stalled = quantile(tenants.waits(near, began, time.monotonic() - 1), 99)
        story.show("brokers", "health", rows=of_sick)
        story.until(f"broker {SICK} leads nothing", lambda: _leads(story, SICK) == 0 or None, SICK_S)
        put_aside = tenants.p99_of(near, ASIDE_S)
    story.claim(
        sick["state"] == "slow" and sick["cause"] == "slower_than_peers",
        f"after {aside_s:.0f} s the controller found it slower than its peers, and put it aside",
    )
    story.claim(
        put_aside < stalled / 2,
        f"its cell's tenants waited {before:.0f} ms (p99) before, {stalled:.0f} ms because of it, and "
        f"{put_aside:.0f} ms while it is put aside",
        of_times=True,
    )
    well = time.monotonic()
    story.say("It runs freely again.")
    story.until(f"broker {SICK} is taken back", lambda: _health(story, SICK, is_healthy=True), WELL_S)
    back_s = time.monotonic() - well
    story.until(f"broker {SICK} leads again", lambda: _leads(story, SICK) or None, WELL_S)
    story.show("brokers", "health", rows=of_sick)
    story.claim(True, f"it was taken back after {back_s:.0f} s, and leads again")
    story.say("Why was it put aside?")
    story.show_audit("broker_changed", lambda event: event.get("cause") == "slower_than_peers", AUDIT_S)


def one_more_broker(scene: Scene) -> None:
    """It fills by itself."""
    story, tenants = scene.story, scene.tenants
    story.act("One more broker")
    began = time.monotonic()
    (added,) = json.loads(story.run("brokers", "add", "--json"))
    broker = int(added["id"])
    cell = _cell_of(story, broker)
    near = tenants.in_cell(cell["cell"])
    done = story.until(f"broker {broker} is filled", lambda: _ended_operation(story, broker), FILLED_S)
    took_s = (done["ended_ms"] - done["begun_ms"]) / 1000
    p99 = quantile(tenants.waits(near, began, time.monotonic()), 99)
    story.show("brokers", "list", rows=lambda line: True)
    rows = {row["broker"]: row for row in story.ask("brokers", "list")}
    beside = [rows[one["broker"]] for one in cell["brokers"] if one["rack"] == rows[broker]["rack"]]
    fair = sum(_held(row) for row in beside) / len(beside)
    story.say(f"Replicas stay in different racks, so broker {broker} shares the work of {rows[broker]['rack']}.")
    story.claim(
        done["state"] == "done" and _held(rows[broker]) >= FAIR_MIN * fair and rows[broker]["leads"] > 0,
        f"in {took_s:.1f} s {done['moves_done']} moves gave it {_held(rows[broker])} replicas; it leads "
        f"{rows[broker]['leads']} partitions. Its cell's tenants waited {p99:.0f} ms (p99) meanwhile",
    )
    story.say("Why is a partition there now?")
    moves = story.ask("balance", "history", "--operation", str(done["id"]))["moves"]
    story.show("balance", "explain", f"{moves[0]['topic']}-{moves[0]['partition']}")
    story.show_audit("balance_operation_changed", lambda event: event["after"].get("brokers") == [broker], AUDIT_S)


def nothing_is_lost(scene: Scene) -> None:
    story, tenants = scene.story, scene.tenants
    story.act("What all of it cost")
    tenants.finish()
    story.claim(not tenants.failed, f"{tenants.sent:,} records were sent by the twelve tenants, and none failed")
    quiet = [tenant for tenant in tenants.clients if tenant != NOISY]
    story.claim(
        all(tenants.stored(one) >= tenants.acknowledged(one) for one in quiet),
        "every topic holds what was acknowledged",
    )
    story.show("quotas", "slo")


# -----------------------------------------------------------------------------------------------------------


def pid_of(cluster: EmbeddedCluster, broker: int) -> int:
    return next(int(row["pid"]) for row in cluster.nodes() if row["role"] == "broker" and int(row["id"]) == broker)


def _cell_of(story: Story, broker: int) -> dict[str, Any]:
    """The cell's row of `tidelog cells list`."""
    cells: Collection[dict[str, Any]] = story.ask("cells", "list")
    return next(cell for cell in cells if any(one["broker"] == broker for one in cell["brokers"]))


def _rows_of(broker: int) -> Callable[[str], bool]:
    return lambda line: line.split()[0] == str(broker)


def _health(story: Story, broker: int, *, is_healthy: bool) -> dict[str, Any] | None:
    """Its row of `tidelog brokers health`, if it is in that state."""
    rows: Collection[dict[str, Any]] = story.ask("brokers", "health")["brokers"]
    row = next(row for row in rows if row["broker"] == broker)
    return row if (row["state"] == "healthy") == is_healthy else None


def _leads(story: Story, broker: int) -> int:
    rows: Collection[dict[str, Any]] = story.ask("brokers", "health")["brokers"]
    return next(int(row["leads"]) for row in rows if row["broker"] == broker)


def _ended_operation(story: Story, broker: int) -> dict[str, Any] | None:
    operations: list[dict[str, Any]] = story.ask("balance", "history", "--limit", "0")["operations"]
    return next((one for one in operations if broker in one["brokers"] and one["state"] != "running"), None)


def _held(row: dict[str, Any]) -> int:
    return int(row["replicas"]) - int(row["internal_replicas"])
