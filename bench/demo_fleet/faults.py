"""Faults that a fleet withstands: a tenant that moves while it is throttled, and two brokers sick at once."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Collection
from typing import Any

from bench.demo_fleet.acts import (
    MEGABYTE,
    NOISY,
    OFFERED,
    QUOTA,
    QUOTA_TIMES_MAX,
    SAVED_UP_S,
    SICK_S,
    WELL_S,
    Scene,
    pid_of,
)
from bench.demo_fleet.story import Story
from bench.demo_fleet.tenants import Noise
from bench.embedded import EmbeddedCluster
from bench.stalling import Stalling

HELD_S, THERE_S = 30.0, 8.0
PAIR = (2, 4)
"""One in each cell."""
FAIL_SAFE_LINE = "nothing is done about sick brokers"


def moving_tenant(scene: Scene) -> None:
    """It stays held to its quota on the way to another cell, and there."""
    story, tenants = scene.story, scene.tenants
    story.act(f"{NOISY} changes cells while it is held to its quota")
    left = tenants.cells[NOISY]
    story.run("tenants", "alter", NOISY, "--limit", f"ingress.bytes.per.second={QUOTA}")
    target = next(row["cell"] for row in story.ask("cells", "list") if row["cell"] != left)
    with Noise(tenants.clients[NOISY], OFFERED) as noise, noise.loud():
        story.until(f"{NOISY} waits for its quota", lambda: any(noise.throttled_ms) or None, HELD_S)
        time.sleep(SAVED_UP_S)
        began = time.monotonic()
        story.run("tenants", "move", NOISY, "--cell", target)
        arrived = time.monotonic()
        tenants.moved(NOISY, target)
        waits = len(noise.throttled_ms)
        time.sleep(THERE_S)
        ended = time.monotonic()
        story.show("quotas", "shares", NOISY)
        waits_ms = [ms for ms in noise.throttled_ms[waits:] if ms]
    there = {row["broker"] for row in _cell_named(story, target)["brokers"]}
    fastest, rate_there = noise.fastest(began, ended, SAVED_UP_S), noise.rate(arrived, ended)
    story.claim(
        fastest <= QUOTA_TIMES_MAX * QUOTA and rate_there > 0,
        f"it is given {noise.rate(began, arrived) / MEGABYTE:.2f} MB/s in the {arrived - began:.0f} s of its move, "
        f"{rate_there / MEGABYTE:.2f} MB/s in cell {target}, on brokers {', '.join(map(str, sorted(there)))}, and "
        f"{fastest / MEGABYTE:.2f} MB/s at most in any {SAVED_UP_S:.0f} s of that time",
    )
    story.claim(
        bool(waits_ms) and not noise.failed,
        f"there {len(waits_ms):,} answers had it wait (throttle_time), and it saw no error on the way",
    )


def two_slow_brokers(scene: Scene) -> None:
    """Nothing is done: two at once are more likely a sick network, or a wrong measurement."""
    story = scene.story
    both = " and ".join(map(str, PAIR))
    story.act(f"Brokers {both} are slow at once")
    with Stalling(pid_of(scene.cluster, PAIR[0])), Stalling(pid_of(scene.cluster, PAIR[1])):
        reason = story.until("the controller calls an operator", lambda: _fail_safe(story), SICK_S)
        rows = story.ask("brokers", "health")["brokers"]
        gauge = _gauge(scene.cluster, "tidelog_health_fail_safe")
    story.say(f"It says: {reason}")
    story.claim(
        all(f"broker {broker} (slower_than_peers: " in reason for broker in PAIR) and gauge == 1.0,
        "the reason names both with their evidence, and tidelog_health_fail_safe is 1",
    )
    story.claim(
        all(row["state"] == "healthy" for row in rows), "no broker is put aside: two at once look like a sick network"
    )
    troubles = _troubles(scene.cluster)
    story.claim(troubles.count(PAIR) == 1, "the log of the active controller has one line about it")
    story.until("the trouble is over", lambda: _fail_safe(story) is None or None, WELL_S)


# -----------------------------------------------------------------------------------------------------------


def _troubles(cluster: EmbeddedCluster) -> list[tuple[int, ...]]:
    """The brokers that each line of the only controller names. On a busy machine others may have one of their own."""
    text = next((cluster.data / "logs").glob("controller-*.log")).read_text(errors="replace")
    lines = [line for line in text.splitlines() if FAIL_SAFE_LINE in line]
    return [tuple(map(int, re.findall(r"broker (\d+) \(slower_than_peers: ", line))) for line in lines]


def _cell_named(story: Story, cell: str) -> dict[str, Any]:
    cells: Collection[dict[str, Any]] = story.ask("cells", "list")
    return next(row for row in cells if row["cell"] == cell)


def _gauge(cluster: EmbeddedCluster, name: str) -> float:
    """Of the only controller."""
    page = next(row["metrics"] for row in cluster.nodes() if row["role"] == "controller")
    text = urllib.request.urlopen(f"http://{page}/metrics", timeout=5).read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def _fail_safe(story: Story) -> str | None:
    """Why nothing is done about a sick broker."""
    reason = story.ask("brokers", "health")["fail_safe"]
    return str(reason) if reason else None
