"""The rows: each measures Tidelog's proxy and haproxy in turn, in one run on one machine, and compares the rounds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.proxy.clients import (
    Target,
    client_context,
    connect,
    exchange,
    handshakes,
    idle,
    pings,
    pings_in_a_storm,
    request,
    stream,
)
from bench.proxy.names import DOMAIN, TENANT
from bench.proxy.peers import ROOT, START_S, Peers, both, wait_serving
from bench.rows import AT_MOST, Figure, Scene, figure
from common.machine_disk import MachineDisk
from common.pacing import at_once
from proxy.route_file import IDENTITY_BYTES, RouteWriter
from proxy.routing import BrokerRoute, RoutingTable, TenantRoute

KIB, MIB = 1 << 10, 1 << 20
IDLE_CONNECTIONS = 5_000
STORM_HELLOS_S = 1_400
SLICE_S = 0.7  # short ones and many: what else the machine does then falls on neighbours alike
WORKERS = 4
Measure = Callable[[Target], dict[str, float]]
Goals = dict[str, tuple[str, str, float | None]]  # by result: the figure's name, its unit, the bound of its ratio


def bounded(name: str, unit: str, values: list[float], bound: float) -> Figure:
    """A figure with a goal of its own instead of one beside another system."""
    made = figure(name, unit, values)
    made.goal, made.met = f"{AT_MOST} {bound:g}", sorted(values)[len(values) // 2] <= bound
    return made


def rounds(scene: Scene, targets: list[Target], measure: Measure) -> dict[str, list[dict[str, float]]]:
    """In turn, the order turned round each time, so that what drifts falls on all alike."""
    found: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
    for number in range(scene.rounds):
        for target in targets if number % 2 == 0 else targets[::-1]:
            one = measure(target)
            found[target.name].append(one)
            scene.say(f"{target.name:9} " + " ".join(f"{name}={value:.3g}" for name, value in one.items()))
    return found


def compared(found: dict[str, list[dict[str, float]]], goals: Goals) -> list[Figure]:
    figures = []
    for result, (name, unit, bound) in goals.items():
        ours, theirs = ([one[result] for one in found[system]] for system in ("tidelog", "haproxy"))
        figures.append(figure(name, unit, ours, "haproxy", theirs, None if bound is None else (AT_MOST, bound)))
    return figures


def terminating(scene: Scene) -> list[Figure]:
    """CPU per GB while TLS ends at the proxy: in both directions, in pieces of 64 KB and 1 MB."""
    seconds, figures = SLICE_S * scene.scale, list[Figure]()
    with both(scene.work) as (ours, theirs):
        targets = [ours["terminated"], theirs["terminated"]]
        for size, words, bound in ((64 * KIB, "64 KB", 1.05), (MIB, "1 MB", 0.95)):
            for direction, up, down in (("up", size, 64), ("down", 64, size)):
                scene.say(f"{words} {direction}")
                found = rounds(scene, targets, lambda one, up=up, down=down: stream(one, up, down, seconds))  # type: ignore[misc]
                figures += compared(found, {"cpu_s_gb": (f"{words} {direction}", "CPU s/GB", bound)})
    return figures


def passing(scene: Scene) -> list[Figure]:
    """The same, passed through."""
    seconds, figures = SLICE_S * scene.scale, list[Figure]()
    with both(scene.work) as (ours, theirs):
        for size, words in ((64 * KIB, "64 KB"), (MIB, "1 MB")):
            for direction, up, down in (("up", size, 64), ("down", 64, size)):
                scene.say(f"{words} {direction}, passed through")
                found = rounds(
                    scene,
                    [ours["passed"], theirs["passed"]],
                    lambda one, up=up, down=down: stream(one, up, down, seconds),  # type: ignore[misc]
                )
                figures += compared(found, {"cpu_s_gb": (f"{words} {direction}, passed", "CPU s/GB", 0.85)})
    return figures


def requests(scene: Scene) -> list[Figure]:
    """A request of 1 KB: CPU, and what the proxy adds to its time, beside no proxy at all."""
    seconds = 2 * SLICE_S * scene.scale
    with Peers(scene.work) as peers:
        theirs, ours = peers.haproxy()["terminated"], peers.tidelog()["terminated"]
        found = rounds(scene, [ours, theirs, peers.direct()], lambda one: pings(one, seconds))
    for system in ("tidelog", "haproxy"):
        for own, plain in zip(found[system], found["no proxy"], strict=True):
            own["added_p50"], own["added_p99"] = own["p50_us"] - plain["p50_us"], own["p99_us"] - plain["p99_us"]
    goals: Goals = {
        "cpu_us": ("1 KB request", "CPU us", 1.1),
        "added_p50": ("added to 1 KB, p50", "us", 1.05),
        "added_p99": ("added to 1 KB, p99", "us", 1.2),
    }
    return compared(found, goals)


def greeting(scene: Scene) -> list[Figure]:
    """A full handshake with P-256, the broker's connection, one request and the end."""
    seconds = 2 * SLICE_S * scene.scale
    with both(scene.work) as (ours, theirs):
        targets = [ours["terminated"], theirs["terminated"]]
        found = rounds(scene, targets, lambda one: handshakes(one, seconds))
    return compared(found, {"cpu_us": ("full P-256 handshake", "CPU us", 1.25)})


def idling(scene: Scene) -> list[Figure]:
    """Memory of idle connections, before and after use."""
    count = scene.sized(IDLE_CONNECTIONS, 200)
    figures = []
    with both(scene.work) as (ours, theirs):
        found = {one.name: idle(one, count) for one in (ours["terminated"], theirs["terminated"])}
        for name, result in found.items():
            scene.say(f"{name:9} " + " ".join(f"{key}={value:.3g}" for key, value in result.items()))
    for key, words in (("before_kb", "before"), ("after_kb", "after")):
        made = bounded(f"idle connection, {words} use", "kB", [found["tidelog"][key]], 20.0)
        made.beside, made.others = "haproxy", [round(found["haproxy"][key], 1)]
        figures.append(made)
    return figures


def storming(scene: Scene) -> list[Figure]:
    """What others feel while strangers say hello 1,400 times a second."""
    seconds = scene.sized(5.0)
    with both(scene.work) as (ours, theirs):
        found = rounds(
            scene,
            [ours["terminated"], theirs["terminated"]],
            lambda one: pings_in_a_storm(one, seconds, STORM_HELLOS_S),
        )
    made = bounded("p99 of others in a storm", "ms", [one["p99_us"] / 1000 for one in found["tidelog"]], 6.0)
    made.beside, made.others = "haproxy", [round(one["p99_us"] / 1000, 3) for one in found["haproxy"]]
    return [made, *compared(found, {"hellos_s": ("hellos answered in it", "1/s", None)})]


def restarting(scene: Scene) -> list[Figure]:
    """Four workers of `tidelog proxy` are replaced one after the other while clients come and go."""
    with Peers(scene.work) as peers:
        process, target = start_proxy(scene.work, peers)
        try:
            made, lost = knock_while(target, lambda: replace_workers(process, target, scene))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_S)
    scene.say(f"{made} connections, {len(lost)} lost {lost[:3]}")
    return [
        bounded("connections lost in a rolling restart", "", [float(len(lost))], 0.0),
        figure("connections made meanwhile", "", [float(made)]),
    ]


def start_proxy(work: Path, peers: Peers) -> tuple[subprocess.Popen[bytes], Target]:
    """`tidelog proxy` with routes that it knew before; there are no controllers."""
    data, port = work / "data", peers.port()
    broker = BrokerRoute(0, ("127.0.0.1", peers.backend), "default", True)
    table = RoutingTable({TENANT: TenantRoute(TENANT, "default", 10_000, 0.0)}, {0: broker}, 1)
    at_once(RouteWriter(MachineDisk(data), lambda: bytes(IDENTITY_BYTES)).writing(table, ()))
    (work / "secret").write_text("0" * 32)
    settings = {
        "node.id": "1",
        "log.dirs": str(data),
        "tidelog.cluster.secret.file": str(work / "secret"),
        "controller.quorum.voters": "1@127.0.0.1:1",
        "tidelog.proxy.host": "127.0.0.1",
        "tidelog.proxy.port": str(port),
        "tidelog.proxy.domain": DOMAIN,
        "tidelog.proxy.workers": str(WORKERS),
        "tidelog.proxy.certificate.file": str(peers.certificate),
        "tidelog.proxy.drain.ms": "3000",
    }
    (work / "proxy.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "proxy", "--config", str(work / "proxy.properties")],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    target = Target("tidelog", port, [process.pid])
    wait_serving(target)
    return process, target


def children(process: subprocess.Popen[bytes]) -> set[str]:
    return set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


def replace_workers(process: subprocess.Popen[bytes], target: Target, scene: Scene) -> None:
    before = children(process)
    process.send_signal(signal.SIGUSR1)
    end = time.monotonic() + 120
    while before & children(process):
        if time.monotonic() > end:
            raise RuntimeError("old workers stay")
        time.sleep(0.1)
    if len(children(process)) != WORKERS + 1:
        raise RuntimeError("workers are missing")


def knock_while(target: Target, what: Callable[[], None]) -> tuple[int, list[str]]:
    """Connections that were made and served during `what`, and what became of the others."""
    stop, counts, lost = threading.Event(), list[int](), list[str]()

    def knock() -> None:
        context, words, room, count = client_context(), request(64, 64), memoryview(bytearray(64)), 0
        while not stop.is_set():
            try:
                with connect(target, context) as sock:
                    exchange(sock, words, 64, room)
                count += 1
            except (OSError, EOFError) as error:
                lost.append(repr(error))
        counts.append(count)

    threads = [threading.Thread(target=knock) for _ in range(max(2, os.cpu_count() or 2))]
    for thread in threads:
        thread.start()
    try:
        what()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return sum(counts), lost
