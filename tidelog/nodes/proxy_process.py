"""A proxy as processes: a parent that owns the port, a steward that follows the metadata, and a worker for each core.

The parent opens one socket per worker on the same port and never accepts. When a worker dies, drains or is replaced,
the next one serves the connections in its socket's backlog. SIGTERM drains and ends; a second one ends at once. SIGHUP
reloads certificates; SIGUSR1 replaces the workers one after the other with ones that have new settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import uvloop

from common.backoff import Backoff
from common.errors import StorageFailure
from common.lifecycle import watch_tasks
from common.machine import machine_ports
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.identity import NodeSettings
from common.ports import Ports
from common.settings import SettingError
from proxy.certificates import CertificateProblem
from proxy.config import ProxyConfig
from proxy.counters import COUNT, add_counters, without_gauges
from proxy.shared_state import SharedState
from proxy.sockets import RawSocket, listen
from proxy.steward import RETIRED_SLOT, WORKER_SLOTS, Steward
from proxy.worker import ProxyWorker
from tidelog.configuration.node_config import data_directory
from tidelog.configuration.proxy_config import proxy_config, within_descriptors
from tidelog.nodes.descriptors import raise_limit
from tidelog.nodes.directory_lock import DirectoryInUse, held_directory
from tidelog.nodes.http_endpoint import HttpEndpoint
from tidelog.nodes.logs import configure_logs
from tidelog.nodes.process_metrics import register_node

logger = logging.getLogger(__name__)

EXIT_FATAL = 70  # EX_SOFTWARE, as of every node
READY_TIMEOUT_S = 20.0
RESTART = Backoff(0.2, 5.0)
STEADY_S = 30.0  # a process that ran this long was not a failed start
STOP_GRACE_S = 5.0  # beyond the drain, before a worker is killed
STEWARD = -1
_HURRY = signal.SIGUSR2  # from the parent to a worker that drains; a stop of all processes at once does not send it
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
Reread = Callable[[], Mapping[str, str]]


@dataclass(slots=True)
class Child:
    """A process that the parent started. `index` is that of its socket, or STEWARD; `slot` in the shared memory."""

    pid: int
    index: int
    slot: int
    ready_fd: int
    born: float
    is_stopping: bool = False
    kill_at: float = field(default=float("inf"))


def run_proxy(
    settings: Mapping[str, str], *, reread: Reread | None = None, status_fd: int = -1, life_fd: int = -1
) -> int:
    """Run a proxy until a signal stops it; returns its exit status. `reread` gives the settings for a rolling restart.

    The proxy writes a line to `status_fd` when it serves, and one with the cause when it ends by itself. The end of
    `life_fd` means that the process which started this proxy has ended.
    """
    values = NODE_SETTINGS.values(settings)
    node = values.group(NodeSettings)
    configure_logs(node.log_level, f"proxy-{node.node_id}")
    try:
        with held_directory(data_directory(values)):
            config = within_descriptors(proxy_config(settings), raise_limit())
            return ProxyParent(settings, config, reread or (lambda: settings), status_fd, life_fd).run()
    except (SettingError, DirectoryInUse) as error:
        logger.critical("node stops: %s", error)
        _report(status_fd, f"fatal {' '.join(str(error).split())}")
        return EXIT_FATAL


class ProxyParent:
    """Only starts, watches and ends processes; it has no event loop, so that forking is safe."""

    def __init__(
        self, settings: Mapping[str, str], config: ProxyConfig, reread: Reread, status_fd: int, life_fd: int
    ) -> None:
        self._settings, self._config, self._reread = settings, config, reread
        self._status_fd, self._life_fd = status_fd, life_fd
        slots = WORKER_SLOTS + 2 * config.workers  # while workers are replaced there are two of each
        self._memory = mmap.mmap(-1, SharedState.bytes_for(slots))
        self._shared = SharedState(memoryview(self._memory), os.urandom(32))
        for number in range(WORKER_SLOTS):
            self._shared.slots[number].take()
        self._socks: list[RawSocket] = []
        self._children: dict[int, Child] = {}
        self._deaths: dict[int, int] = {}  # in a row, by the child's index
        self._due: dict[int, float] = {}  # by index: when a worker that died is started again
        self._wake_fds = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._life_fds = os.pipe2(os.O_CLOEXEC)  # closed when the parent ends, which the children notice
        self._stopping = self._hurry_wanted = self._replace_wanted = self._reload_wanted = False
        self._announced = False
        self._turns: list[int] = []  # workers still to be replaced

    def run(self) -> int:
        try:
            self._socks = listen(self._config.listen, self._config.workers)
        except OSError as error:
            host, port = self._config.listen
            raise SettingError(f"tidelog.proxy.port: {host}:{port} cannot be bound: {error.strerror}") from error
        # All sockets have the same port, also where the settings leave it to the system.
        self._config = replace(self._config, listen=(self._config.listen[0], self._socks[0].getsockname()[1]))
        self._take_signals()
        gc.collect()
        gc.freeze()
        logger.info("proxy starts", extra={"port": self._config.listen[1], "workers": self._config.workers})
        self._start(STEWARD)
        for index in range(self._config.workers):
            self._start(index)
        while self._children or not self._stopping:
            self._wait()
            self._reap()
            self._act()
        return 0

    # What happens outside.

    def _take_signals(self) -> None:
        signal.set_wakeup_fd(self._wake_fds[1], warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._hurry_wanted = self._stopping
            self._stopping = True
        elif number == signal.SIGHUP:
            self._reload_wanted = True
        elif number == signal.SIGUSR1:
            self._replace_wanted = True

    def _wait(self) -> None:
        now = time.monotonic()
        moments = [*self._due.values(), *(child.kill_at for child in self._children.values()), now + 60.0]
        fds = [self._wake_fds[0], *(child.ready_fd for child in self._children.values() if child.ready_fd >= 0)]
        if self._life_fd >= 0:
            fds.append(self._life_fd)
        ready, _, _ = select.select(fds, [], [], max(0.0, min(moments) - now))
        if self._wake_fds[0] in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake_fds[0], 512):
                    pass
        if self._life_fd in ready and not os.read(self._life_fd, 1):
            logger.warning("the supervisor has ended, so this proxy stops")
            self._life_fd, self._stopping = -1, True
        for child in list(self._children.values()):
            if child.ready_fd in ready:
                self._heard(child)

    def _heard(self, child: Child) -> None:
        """Read a child's ready message; one that ends without a message is reaped soon."""
        word = os.read(child.ready_fd, 1)
        os.close(child.ready_fd)
        child.ready_fd = -1
        if not word:
            return
        child.kill_at = float("inf")
        for other in self._children.values():
            if other.index == child.index and other is not child:
                self._stop(other)
        if not self._announced and self._all_ready():
            self._announced = True
            logger.info("node serves", extra={"port": self._config.listen[1]})
            _report(self._status_fd, "ready")

    def _all_ready(self) -> bool:
        serving = {child.index for child in self._children.values() if child.ready_fd < 0}
        return serving >= {STEWARD, *range(self._config.workers)}

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, status: int) -> None:
        if child.ready_fd >= 0:
            os.close(child.ready_fd)
        if child.index != STEWARD:
            slot = self._shared.slots[child.slot]
            retired = self._shared.slots[RETIRED_SLOT]
            retired.write_counters(
                add_counters([retired.read_counters(COUNT), without_gauges(slot.read_counters(COUNT))])
            )
            slot.release()
        if self._stopping:
            return
        if child.is_stopping:
            if child.index == STEWARD:
                self._due[STEWARD] = time.monotonic()
            return
        logger.error("a process of the proxy died", extra={"part": _name(child.index), "status": status})
        if any(other.index == child.index and not other.is_stopping for other in self._children.values()):
            self._turns = []  # it was to replace one that still serves, which stays
            return
        now = time.monotonic()
        deaths = 1 if now - child.born > STEADY_S else self._deaths.get(child.index, 0) + 1
        self._deaths[child.index] = deaths
        self._due[child.index] = now + RESTART.pause_s(deaths)

    # What is done about it.

    def _act(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if now >= child.kill_at:
                child.kill_at = float("inf")
                _send(child.pid, signal.SIGKILL)
        if self._stopping:
            self._end_all()
            return
        if self._reload_wanted:
            self._reload_wanted = False
            for child in self._children.values():
                _send(child.pid, signal.SIGHUP)
        for index in [index for index, due in self._due.items() if due <= now]:
            del self._due[index]
            self._start(index)
        if self._replace_wanted:
            self._replace_wanted = False
            self._begin_replacing()
        if self._turns:
            self._replace_next()

    def _end_all(self) -> None:
        """Stop workers first, because the steward serves the health page until the last one has ended. Close the
        parent's sockets before the workers', which still serve connections in their backlogs."""
        for sock in self._socks:
            sock.close()
        self._socks = []
        workers = [child for child in self._children.values() if child.index != STEWARD]
        for child in workers or list(self._children.values()):
            self._stop(child)
        if self._hurry_wanted:
            self._hurry_wanted = False
            for child in workers:
                child.kill_at = min(child.kill_at, time.monotonic() + STOP_GRACE_S)
                _send(child.pid, _HURRY)

    def _stop(self, child: Child) -> None:
        if not child.is_stopping:
            child.is_stopping = True
            child.kill_at = time.monotonic() + self._config.limits.drain_s + STOP_GRACE_S
            _send(child.pid, signal.SIGTERM)

    def _begin_replacing(self) -> None:
        """Reload the settings; invalid ones change nothing and are logged in one line."""
        try:
            settings = self._reread()
            config = within_descriptors(proxy_config(settings), raise_limit())
        except (SettingError, OSError, UnicodeDecodeError) as error:
            logger.error("workers are not replaced, the settings cannot be used: %s", error)
            return
        if config.workers != self._config.workers or config.listen[0] != self._config.listen[0]:
            logger.warning("another address or number of workers needs a restart of the proxy")
        kept = replace(config, listen=self._config.listen, workers=self._config.workers)
        kept = replace(kept, limits=replace(kept.limits, workers=self._config.workers))
        self._settings, self._config = settings, kept
        self._turns = [STEWARD, *range(self._config.workers)]
        logger.info("workers are replaced")

    def _replace_next(self) -> None:
        """Replace the next worker when the last one's successor serves, and its predecessor has freed a slot."""
        if any(child.ready_fd >= 0 for child in self._children.values()) or self._due:
            return
        if all(slot.in_use for slot in self._shared.slots):
            return
        index = self._turns.pop(0)
        if index == STEWARD:  # two would write to one directory, so it ends first
            for child in self._children.values():
                if child.index == STEWARD:
                    child.is_stopping = True
                    child.kill_at = time.monotonic() + STOP_GRACE_S
                    _send(child.pid, signal.SIGTERM)
            return
        self._start(index)

    def _start(self, index: int) -> None:
        slot = STEWARD if index == STEWARD else self._shared.take_slot()
        ready_fd, say_fd = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if not pid:
            self._be_child(index, slot, say_fd)
        os.close(say_fd)
        now = time.monotonic()
        self._children[pid] = Child(pid, index, slot, ready_fd, now, kill_at=now + READY_TIMEOUT_S)

    def _be_child(self, index: int, slot: int, say_fd: int) -> None:
        status: int = EXIT_FATAL
        try:
            signal.set_wakeup_fd(-1)
            for number in (*_SIGNALS, _HURRY):  # signals without a handler yet must not end a child
                signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._life_fds[1])
            values = NODE_SETTINGS.values(self._settings)
            configure_logs(values.group(NodeSettings).log_level, f"proxy-{self._config.node_id}-{_name(index)}")
            for other, sock in enumerate(self._socks):
                if other != index:
                    sock.close()
            life = _Life(self._life_fds[0], say_fd)
            ports = machine_ports(data_directory(values))
            if index == STEWARD:
                status = uvloop.run(_be_steward(ports, self._config, self._shared, life))
            else:
                status = uvloop.run(_be_worker(ports, self._config, self._socks[index], self._shared, slot, life))
        except CertificateProblem as problem:
            logger.error("a worker cannot start: %s", problem)
        except BaseException:
            logger.exception("a process of the proxy failed")
        finally:
            os._exit(status)


@dataclass(frozen=True, slots=True)
class _Life:
    """A child's link to its parent: `parent_fd` ends when the parent does; `say_fd` gets one byte."""

    parent_fd: int
    say_fd: int

    def ready(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.say_fd, b"r")
        os.close(self.say_fd)

    def wait_for_end(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """Set by SIGTERM, and when the parent has ended."""
        ended = asyncio.Event()

        def gone() -> None:
            loop.remove_reader(self.parent_fd)
            ended.set()

        loop.add_signal_handler(signal.SIGTERM, ended.set)
        loop.add_reader(self.parent_fd, gone)
        return ended


async def _be_worker(
    ports: Ports, config: ProxyConfig, sock: RawSocket, shared: SharedState, slot: int, life: _Life
) -> int:
    loop = asyncio.get_running_loop()
    ended = life.wait_for_end(loop)
    worker = ProxyWorker(ports, config, sock, shared, slot)
    loop.add_signal_handler(signal.SIGHUP, worker.reload)
    loop.add_signal_handler(_HURRY, worker.hurry)
    await worker.start()
    gc.collect()
    gc.freeze()
    life.ready()
    await ended.wait()
    logger.info("worker drains")
    await worker.drain()
    return 0


async def _be_steward(ports: Ports, config: ProxyConfig, shared: SharedState, life: _Life) -> int:
    loop = asyncio.get_running_loop()
    ended = life.wait_for_end(loop)
    problems: list[str] = []

    def fail(reason: str) -> None:
        logger.critical("steward stops: %s", reason)
        problems.append(reason)
        ended.set()

    watch_tasks(loop, fail)
    steward = Steward(ports, config, shared, fail)
    register_node(steward.metrics, "proxy")
    endpoint = HttpEndpoint(steward.metrics, steward.ready_problem, steward.health_problem)
    try:
        await endpoint.start(*config.metrics)
        await steward.start()
    except (OSError, StorageFailure) as error:
        logger.error("steward does not start: %s", error.strerror if isinstance(error, OSError) else error)
        return EXIT_FATAL
    life.ready()
    await ended.wait()
    await steward.stop()
    await endpoint.stop()
    return EXIT_FATAL if problems else 0


def _name(index: int) -> str:
    return "steward" if index == STEWARD else f"worker-{index}"


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _report(status_fd: int, line: str) -> None:
    if status_fd >= 0:
        with contextlib.suppress(OSError):
            os.write(status_fd, line.encode() + b"\n")
