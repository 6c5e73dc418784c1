"""Faults as a list of plain values, drawn before the run from the seed alone: so a run can be repeated with fewer of
them, which is all that shrinking is.

What a fault does may depend on the moment: a loss of power that the cluster does not promise to survive becomes a
kill, and a failing disk is left out then (`may_lose_data` decides).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tests.sim.bucket import Bucket
from tests.sim.cluster_settings import CLIENT_PORT
from tests.sim.loop import MS
from tests.sim.world import World

CRASHES = ("kill", "kill_in_write", "power", "stop")
LINKS = ("cut", "one_way", "isolate", "slow_link", "stall", "reset")
DISKS = ("slow_disk", "stuck_disk", "full_disk", "failed_disk")
FAILURES = ("full_disk", "failed_disk")
TOGETHER = ("kill_all", "power_all")
STORE = (
    "store_down",
    "store_slow",
    "store_503",
    "store_loses_answers",
    "store_cut",
    "store_truncated",
    "store_altered",
    "store_stale",
    "store_full",
    "store_denied",
)
HEALTH = ("slow_replies", "no_clients")
"""A broker sends late to other brokers; or nobody reaches it where clients connect."""
BUCKET = "bucket"
SOMETIMES = 0.4  # of calls
SLOW_REPLY_NS = 150 * MS
STUCK_MS = (15_000, 60_000)
HANGS_SHARE = 0.4
"""Of disks that are stuck for long: the broker's event loop waits for the disk as well."""
KINDS = (*CRASHES, *LINKS, *DISKS, *TOGETHER, "pause", "wall_jump")
DURATION_MS = {"kill_all": 300, "power_all": 300, "pause": 900, "stop": 600, "stuck_disk": 700, "full_disk": 600}


@dataclass(frozen=True, order=True)
class Fault:
    """`target` and `other` are node names; for a kind in TOGETHER they do not matter."""

    at_ms: int
    kind: str
    target: str
    other: str
    duration_ms: int

    def __str__(self) -> str:
        other = f" {self.other}" if self.kind in LINKS and self.kind != "isolate" else ""
        target = "" if self.kind in (*TOGETHER, *STORE) else f" {self.target}"
        return f"{self.at_ms} ms: {self.kind}{target}{other} for {self.duration_ms} ms"


@dataclass(frozen=True, slots=True)
class Targets:
    """Which nodes faults may hit: `crashable` die and lose disks, `linked` have links that break."""

    crashable: Sequence[str]
    linked: Sequence[str]


def draw(rng: random.Random, targets: Targets, begin_ms: int, end_ms: int, *, count_max: int = 8) -> list[Fault]:
    """Each seed uses only some kinds (swarm testing): rare combinations get room to happen. Half of the faults start
    soon after another one, where half-finished work is. All are healed at `end_ms`."""
    kinds = [kind for kind in KINDS if rng.random() < 0.4] or [rng.choice(KINDS)]
    faults: list[Fault] = []
    for _ in range(rng.randint(1, count_max)):
        kind = rng.choice(kinds)
        target = rng.choice(targets.linked if kind in LINKS else targets.crashable)
        other = rng.choice([name for name in targets.linked if name != target])
        at_ms = rng.randrange(begin_ms, end_ms)
        if faults and rng.random() < 0.5:
            at_ms = min(rng.choice(faults).at_ms + int(rng.expovariate(1 / 150)), end_ms - 1)
        duration_ms = int(rng.expovariate(1 / DURATION_MS.get(kind, 700))) + 1
        faults.append(Fault(at_ms, kind, target, other, min(duration_ms, end_ms - at_ms)))
    return sorted(faults)


def draw_store(rng: random.Random, begin_ms: int, end_ms: int, *, count_max: int = 4) -> list[Fault]:
    """Faults of the object store; often none."""
    faults = []
    for _ in range(rng.randint(0, count_max)):
        at_ms = rng.randrange(begin_ms, end_ms)
        duration_ms = int(rng.expovariate(1 / 900)) + 1
        faults.append(Fault(at_ms, rng.choice(STORE), BUCKET, "", min(duration_ms, end_ms - at_ms)))
    return faults


def draw_health(rng: random.Random, brokers: Sequence[str], end_ms: int, *, count_max: int = 2) -> list[Fault]:
    """Brokers that are sick without being dead, for long enough to be found so."""
    faults = []
    for _ in range(rng.randint(1, count_max)):
        at_ms = rng.randrange(end_ms // 3)
        faults.append(Fault(at_ms, rng.choice(HEALTH), rng.choice(brokers), "", end_ms - at_ms))
    return faults


def draw_stuck(rng: random.Random, brokers: Sequence[str], end_ms: int) -> list[Fault]:
    """One broker's disk answers no more for 15 to 60 s, which goes on long after all other faults."""
    at_ms, duration_ms, target = rng.randrange(end_ms), rng.randint(*STUCK_MS), rng.choice(brokers)
    stuck = Fault(at_ms, "stuck_disk", target, "", duration_ms)
    return [stuck, replace(stuck, kind="pause")] if rng.random() < HANGS_SHARE else [stuck]


class Nemesis:
    """Carries the faults out, their times counted from now. `together` die as one in the kinds TOGETHER."""

    def __init__(
        self,
        world: World,
        faults: Sequence[Fault],
        together: Sequence[str],
        may_lose_data: Callable[[Sequence[str]], bool] = lambda names: True,
        disk_fails: Callable[[str, bool], None] = lambda name, fails: None,
        bucket: Bucket | None = None,
    ) -> None:
        """`disk_fails` is told when a failing disk begins (True) and ends."""
        self.bucket = bucket
        self.world, self.together, self.may_lose_data, self.disk_fails = (
            world,
            list(together),
            may_lose_data,
            disk_fails,
        )
        self._holds: dict[tuple[str, str], int] = {}  # overlapping faults of one kind on one node
        for fault in faults:
            rng = world.stream(f"fault/{fault.at_ms}/{fault.kind}/{fault.target}")
            world.scheduler.after(fault.at_ms * MS, self._begin, fault, rng)

    def _begin(self, fault: Fault, rng: random.Random) -> None:
        self.world.trace(f"FAULT {fault}")
        if fault.kind in CRASHES or fault.kind in TOGETHER:
            self._crash(fault, rng)
        elif fault.kind in LINKS:
            self._break_link(fault, rng)
        elif fault.kind in HEALTH:
            self._sicken(fault)
        elif fault.kind in STORE:
            self._hold_store(fault, True)
            self._later(fault, self._hold_store, fault, False)
        elif fault.kind in FAILURES and not self.may_lose_data([fault.target]):
            self.world.trace("  left out")
        elif fault.kind in DISKS:
            self._hold(fault, True)
            self._later(fault, self._hold, fault, False)
        elif fault.kind == "pause":
            self.world.pause(fault.target)
            self._later(fault, self.world.resume, fault.target)
        elif fault.kind == "wall_jump":
            self.world.nodes[fault.target].wall_error_ms += rng.choice((-5_000, -300, 300, 5_000))
        else:
            raise ValueError(fault.kind)

    def _crash(self, fault: Fault, rng: random.Random) -> None:
        world = self.world
        names = self.together if fault.kind in TOGETHER else [fault.target]
        power = fault.kind in ("power", "power_all") and self.may_lose_data(names)
        for name in names:
            if fault.kind == "stop":
                world.stop(name)
                self._later(fault, self._start_stopped, name)
            elif fault.kind == "kill_in_write":
                world.nodes[name].device.kill_countdown = rng.randint(1, 12)
                self._later(fault, self._start_stopped, name)
            elif power:
                world.power_off(name)
                self._later(fault, world.start, name)
            else:
                world.kill(name)
                self._later(fault, world.start, name)

    def _start_stopped(self, name: str) -> None:
        """A node that has not ended by now (it hangs in its stop, or met no write) is killed first."""
        if self.world.nodes[name].loop is not None:
            self.world.kill(name)
        self.world.nodes[name].device.kill_countdown = None
        self.world.start(name)

    def _break_link(self, fault: Fault, rng: random.Random) -> None:
        world, fabric, pairs = self.world, self.world.fabric, [(fault.target, fault.other)]
        if fault.kind == "reset":
            world.trace(f"{fabric.reset_some(rng, fault.target, fault.other)} connections reset")
        elif fault.kind == "stall":
            until_ns = world.scheduler.now_ns + fault.duration_ms * MS
            world.trace(f"{fabric.stall_some(rng, fault.target, fault.other, until_ns)} connections stall")
        elif fault.kind == "slow_link":
            delay_ns = rng.randint(10, 300) * MS
            fabric.slow[pairs[0]] = fabric.slow.get(pairs[0], 0) + delay_ns
            self._later(fault, self._hasten, pairs[0], delay_ns)
        else:
            if fault.kind == "isolate":
                pairs = [(fault.target, name) for name in world.nodes if name != fault.target]
            if fault.kind != "one_way":
                pairs += [(b, a) for a, b in pairs]
            fabric.change_cut(pairs, 1)
            self._later(fault, fabric.change_cut, pairs, -1)

    def _sicken(self, fault: Fault) -> None:
        fabric = self.world.fabric
        if fault.kind == "no_clients":
            address = (fault.target, CLIENT_PORT)
            fabric.change_unheard(address, 1)
            self._later(fault, fabric.change_unheard, address, -1)
            return
        for other in self.together:
            if other != fault.target:
                pair = (fault.target, other)
                fabric.slow[pair] = fabric.slow.get(pair, 0) + SLOW_REPLY_NS
                self._later(fault, self._hasten, pair, SLOW_REPLY_NS)

    def _hasten(self, pair: tuple[str, str], delay_ns: int) -> None:
        self.world.fabric.slow[pair] -= delay_ns

    def _hold(self, fault: Fault, begins: bool) -> None:
        world, key = self.world, (fault.kind, fault.target)
        self._holds[key] = self._holds.get(key, 0) + (1 if begins else -1)
        held, device = self._holds[key] > 0, world.nodes[fault.target].device
        if fault.kind in FAILURES:
            self.disk_fails(fault.target, held)
        if fault.kind == "slow_disk":
            device.slow_factor = 60 if held else 1
        elif fault.kind == "stuck_disk":
            world.set_stuck(fault.target, held)
        elif fault.kind == "full_disk":
            device.full = held
        elif fault.kind == "failed_disk":
            device.error = errno.EIO if held else None
            if not held:  # the operator changes the cable and starts the node again
                world.kill(fault.target)
                world.start(fault.target)

    def _hold_store(self, fault: Fault, begins: bool) -> None:
        bucket, key = self.bucket, (fault.kind, "")
        if bucket is None:
            return
        self._holds[key] = self._holds.get(key, 0) + (1 if begins else -1)
        held, faults = self._holds[key] > 0, bucket.faults
        match fault.kind:
            case "store_slow":
                bucket.slow = held
            case "store_stale":
                bucket.show_stale_listings(held)
            case "store_down":
                faults.down = held
            case "store_full":
                faults.full = held
            case "store_denied":
                faults.denied = held
            case "store_503":
                faults.unavailable = SOMETIMES if held else 0.0
            case "store_loses_answers":
                faults.lost_answer = SOMETIMES if held else 0.0
            case "store_cut":
                faults.cut = SOMETIMES if held else 0.0
            case "store_truncated":
                faults.truncated = SOMETIMES if held else 0.0
            case "store_altered":
                faults.altered = SOMETIMES if held else 0.0
            case _:
                raise ValueError(fault.kind)

    def _later(self, fault: Fault, heal: Callable[..., object], *args: object) -> None:
        self.world.scheduler.after(fault.duration_ms * MS, heal, *args)


def shrink(faults: list[Fault], fails: Callable[[list[Fault]], bool]) -> tuple[list[Fault], int]:
    """Delta debugging (Zeller's ddmin): a list from which no single fault can be left out, and the runs used."""
    runs, parts = 0, 2
    while faults:
        size = max(1, -(-len(faults) // parts))
        for start in range(0, len(faults), size):
            fewer = faults[:start] + faults[start + size :]
            runs += 1
            if fails(fewer):
                faults, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(faults))
    return faults, runs
