"""The parent of an embedded cluster's nodes: forks them, restarts those that crash, stops all in order.

`python -m tidelog.cluster.supervisor DIR [TENANT,…]` imports the nodes' code once and forks, so a node costs neither a
start of the interpreter nor its imports. It is single-threaded without an event loop: one selector waits for its
children, its control socket and signals. A node whose supervisor has ended stops by itself, because each holds the
reading end of a pipe that the supervisor never writes to.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common.settings import SettingError
from tidelog.cluster import control
from tidelog.cluster.console_process import ConsoleProcess
from tidelog.cluster.embedded_tenants import tell_tenants
from tidelog.cluster.layout import ClusterLayout, NodeLayout, PortTaken, forget_broker, grow_layout, load_layout
from tidelog.cluster.node_child import SIGNALS, Answer, Child, stop_timeout_s
from tidelog.cluster.words import LOGS, ready_lines, stopped_line, stopping_line
from tidelog.nodes.logs import configure_logs
from tidelog.nodes.node_code import NodeCode

LOCK_FILE = "supervisor.lock"
ROLES = ("controller", "broker", "proxy")  # in the order of their start
# a lone controller cannot be ready until the next `start`
START_ANSWER_S = {"broker": 30.0, "proxy": 10.0, "controller": 5.0}
CONTROL_CONNECTIONS_MAX = 64

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs the nodes of `layout` below `root` until SIGINT, SIGTERM or `tidelog down`."""

    def __init__(
        self,
        root: Path,
        layout: ClusterLayout,
        say: Callable[[str], None],
        tenants: Sequence[str] = (),
        code: NodeCode | None = None,
        console_port: int | None = None,
    ) -> None:
        self._root = root
        self._layout = layout
        self._shared = layout.shared_settings()  # of this run: nodes that are added or restarted later must agree
        self._say = say
        self._code = code or NodeCode()
        self._children = {node.name: Child(node) for node in layout.nodes}
        self._selector = selectors.DefaultSelector()
        self._announced = False
        self._tenants = list(tenants)  # to be created before the cluster is ready
        self._tenants_making: subprocess.Popen[str] | None = None
        self._console_port = console_port
        self._console: ConsoleProcess | None = None
        self._ending = False
        self._status = 0
        self._waiting_for_end: list[Answer] = []
        self._connections: set[socket.socket] = set()
        self._life_read, self._life_write = os.pipe()

    def run(self) -> int:
        """The exit status: 0 after an orderly stop, 1 if the tenants could not be created."""
        lock = self._lock()
        listener = self._listen()
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        self._selector.register(wake_read, selectors.EVENT_READ, self._signalled)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for role in dict.fromkeys(role for role in ROLES if any(n.role == role for n in self._layout.nodes)):
            # controllers elect their leader while the brokers' code is imported
            self._code.load(role, self._layout.node_settings(self._layout.nodes[0], self._root, self._shared))
            gc.collect()
            gc.freeze()
            self._turn(0)
            for child in self._children.values():
                if child.node.role == role and child.wanted and not child.pid:
                    self._start(child)
        while not (self._ending and not any(child.pid for child in self._children.values())):
            self._turn(self._timeout())
        with contextlib.suppress(OSError), control.socket_path(self._root) as path:
            os.unlink(path)
        for answer in self._waiting_for_end:
            answer({"ok": True})
        os.close(lock)
        if self._announced:
            self._say(stopped_line(self._root))
        return self._status

    def _turn(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data(key.fileobj)
        self._on_time()

    # starting and watching children ---------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        child.start(partial(self._run_node, child.node), self._log_of(child), self._life_read, time.monotonic())
        self._selector.register(child.status_fd, selectors.EVENT_READ, lambda fd: self._read_status(child))

    def _run_node(self, node: NodeLayout, status_fd: int) -> int:
        """In the forked process."""
        settings = self._layout.node_settings(node, self._root, self._shared)
        return self._code.run(node.role, settings, status_fd, self._life_read)

    def _log_of(self, child: Child) -> Path:
        return self._root / LOGS / f"{child.node.name}.log"

    def _read_status(self, child: Child) -> None:
        if child.status_fd < 0:  # closed by an event of the same turn
            return
        was_ready, goes_on = child.ready, child.hear()
        if child.ending and was_ready:
            logger.error("node stops", extra={"child": child.node.name, "reason": child.reason})
        if child.ready and not was_ready:
            self._answer_waiting(child)
            if not self._announced and all(c.ready for c in self._children.values()):
                self._complete()
        if not goes_on:
            self._hear_no_more(child)

    def _complete(self) -> None:
        """All nodes serve. If tenants are requested, another process creates them first."""
        if not self._tenants:
            self._announced = True
            if self._console_port is not None:
                log = self._root / LOGS / "console.log"
                self._console = ConsoleProcess(self._layout, self._root, self._console_port, log, self._life_read)
            more = ready_lines(self._root, self._layout, detached=False, console_port=self._console_port)
            for text in (f"ready bootstrap={self._layout.bootstrap}", *more):
                self._say(text)
        elif self._tenants_making is None:
            line = [sys.executable, "-m", "tidelog.admin.tenant_making", str(self._root), *self._tenants]
            self._tenants_making = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )

    def _tenants_made(self) -> None:
        """The process has ended; if requested tenants are missing, this run has failed."""
        assert self._tenants_making is not None
        status, (_, words) = self._tenants_making.returncode, self._tenants_making.communicate()
        self._tenants_making = None
        if status and not self._ending:
            self._status = 1
            lines = words.strip().splitlines() or [f"status {status}"]
            self._say(f"failed {lines[-1].removeprefix('tidelog: ')}")
            self._end()
        elif not self._ending:
            tenants, self._tenants = self._tenants, []
            self._complete()
            for line in tell_tenants(self._root, self._layout, tenants):
                self._say(line)

    def _hear_no_more(self, child: Child) -> None:
        if child.status_fd >= 0:
            self._selector.unregister(child.status_fd)
            child.hear_no_more()

    def _signalled(self, fd: Any) -> None:
        numbers = os.read(fd, 4096)
        for _ in range(numbers.count(signal.SIGINT) + numbers.count(signal.SIGTERM)):
            self._end()
        self._reap()

    def _reap(self) -> None:
        if self._tenants_making is not None and self._tenants_making.poll() is not None:
            self._tenants_made()
        if self._console is not None:
            self._console.reap()
        for child in self._children.values():
            if not child.pid:
                continue
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, code: int) -> None:
        if child.status_fd >= 0:  # its last message may have come together with its end
            self._read_status(child)
            self._hear_no_more(child)
        pause = child.ended(code, time.monotonic(), starts_again=not self._ending)
        if pause is not None:
            name, exit_, reason = child.node.name, child.last_exit, child.reason or None
            logger.error(
                "node ended by itself", extra={"child": name, "exit": exit_, "reason": reason, "pause_s": pause}
            )
            self._say(f"{name} ended ({child.why}), starts again in {pause:g} s; see {self._log_of(child)}")
        self._answer_waiting(child)
        if self._ending:
            self._stop_next()

    def _timeout(self) -> float | None:
        children = self._children.values()
        moments = [m for c in children for m in (c.restart_at, c.kill_at, c.answer_at) if m is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _on_time(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.restart_at is not None and child.restart_at <= now and not self._ending:
                self._start(child)
            if child.answer_at is not None and child.answer_at <= now:
                self._answer_waiting(child, late=True)
            if child.kill_at is not None and child.kill_at <= now and child.pid:
                child.kill_at = None
                limit_s = stop_timeout_s(child.node, self._shared)
                self._say(f"{child.node.name} did not stop within {limit_s:g} s and is killed")
                child.kill()

    # stopping -------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop proxies first, because their clients then lose every route; then brokers, while the controllers can
        still move their leadership; then the controllers. When requested again, proxies no longer wait for their
        clients."""
        if self._ending:
            self._hurry_proxies()
            return
        self._ending = True
        if self._announced:
            self._say(stopping_line(self._layout))
        for child in self._children.values():
            child.wanted, child.restart_at = False, None
        if self._console is not None:
            self._console.stop()
        if self._tenants_making is not None:
            self._tenants_making.terminate()
        self._stop_next()

    def _hurry_proxies(self) -> None:
        for child in self._children.values():
            if child.pid and child.node.role == "proxy":
                os.kill(child.pid, signal.SIGTERM)

    def _stop_next(self) -> None:
        for role in reversed(ROLES):
            running = [child for child in self._children.values() if child.pid and child.node.role == role]
            for child in running:
                self._terminate(child)
            if running:
                return

    def _terminate(self, child: Child) -> None:
        if child.pid and not child.stopping:
            child.stopping = True
            child.kill_at = time.monotonic() + stop_timeout_s(child.node, self._shared)
            os.kill(child.pid, signal.SIGTERM)
            os.kill(child.pid, signal.SIGCONT)

    # control --------------------------------------------------------------------------------------------------

    def _lock(self) -> int:
        handle = os.open(self._root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"tidelog: a cluster is running in {self._root} already") from None
        return handle

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        with control.socket_path(self._root) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen(CONTROL_CONNECTIONS_MAX)
        listener.setblocking(False)
        return listener

    def _accept(self, listener: Any) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if len(self._connections) >= CONTROL_CONNECTIONS_MAX:
                connection.close()
                return
            connection.settimeout(1.0)
            self._connections.add(connection)
            received = bytearray()
            self._selector.register(connection, selectors.EVENT_READ, lambda c: self._read(c, received))

    def _read(self, connection: socket.socket, received: bytearray) -> None:
        try:
            data = connection.recv(65_536)
        except OSError:
            data = b""
        received += data
        if data and not received.endswith(b"\n") and len(received) < control.LINE_BYTES_MAX:
            return
        self._selector.unregister(connection)
        if not data:
            self._close(connection)
            return

        def answer(reply: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(reply).encode() + b"\n")
            self._close(connection)

        try:
            request = json.loads(received)
            self._handle(str(request["do"]), str(request.get("node", "")), answer)
        except (ValueError, KeyError, TypeError):
            answer({"ok": False, "error": "not a request"})

    def _close(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        connection.close()

    def _handle(self, action: str, name: str, answer: Answer) -> None:
        if action == "ps":
            answer({"ok": True, "nodes": [self._row(c) for c in self._children.values()], "ready": self._announced})
            return
        if action == "down":
            self._waiting_for_end.append(answer)
            self._end()
            return
        if action == "add":
            self._add(answer)
            return
        child = self._children.get(name)
        if child is None:
            known = ", ".join(self._children)
            answer({"ok": False, "error": f"there is no node {name}; the nodes are {known}"})
        elif action == "kill":
            self._kill(child, answer)
        elif action == "forget":
            self._forget(child, answer)
        elif action == "stop":
            child.wanted, child.restart_at = False, None
            child.waiting.append(answer)
            self._terminate(child)
            if not child.pid:
                self._answer_waiting(child)
        elif action == "start":
            if child.pid:
                answer({"ok": False, "error": f"{name} is {child.state} already"})
                return
            child.wanted, child.restarts = True, 0
            child.waiting.append(answer)
            self._start(child)
            child.answer_at = time.monotonic() + START_ANSWER_S[child.node.role]
        else:
            answer({"ok": False, "error": f"unknown request {action}"})

    def _add(self, answer: Answer) -> None:
        """Add a broker with the next id and ports; answered like a start."""
        if self._ending:
            answer({"ok": False, "error": "the cluster is stopping"})
            return
        try:
            (node,) = grow_layout(self._layout, self._root, 1)
        except (SettingError, PortTaken, OSError) as error:
            answer({"ok": False, "error": str(error)})
            return
        child = self._children[node.name] = Child(node)
        child.waiting.append(answer)
        self._start(child)
        child.answer_at = time.monotonic() + START_ANSWER_S[node.role]

    def _forget(self, child: Child, answer: Answer) -> None:
        """Remove a stopped broker from the cluster."""
        if child.pid or child.wanted or child.node.role != "broker":
            answer({"ok": False, "error": f"{child.node.name} is {child.state}; only a stopped broker can be removed"})
            return
        try:
            forget_broker(self._layout, self._root, child.node.name)
        except OSError as error:
            answer({"ok": False, "error": str(error)})
            return
        row = self._row(child)
        del self._children[child.node.name]
        answer({"ok": True, "node": row})

    def _kill(self, child: Child, answer: Answer) -> None:
        child.wanted, child.restart_at = False, None
        if not child.pid:
            answer({"ok": False, "error": f"{child.node.name} is not running"})
            return
        child.waiting.append(answer)
        child.kill()

    def _answer_waiting(self, child: Child, *, late: bool = False) -> None:
        """A start is answered when the node is ready, has died, or takes long; a stop or kill when its process has
        ended."""
        if child.pid and not child.ready and not late:
            return
        child.answer_at = None
        waiting, child.waiting = child.waiting, []
        for answer in waiting:
            if child.wanted and not child.pid:
                answer({"ok": False, "error": f"{child.node.name} ended with {child.why} instead of serving"})
            else:
                answer({"ok": True, "node": self._row(child)})

    def _row(self, child: Child) -> dict[str, Any]:
        node = child.node
        return {
            "node": node.name,
            "role": node.role,
            "id": node.node_id,
            "pid": child.pid or None,
            "state": child.state,
            "reason": child.why if child.wanted and not child.ready and (child.last_exit or child.ending) else "",
            "listeners": node.listeners(),
            "metrics": f"127.0.0.1:{node.metrics_port}",
            "dir": str(node.directory(self._root)),
        }


def main(arguments: list[str]) -> int:
    """`DIR [TENANT,… [FD [PORT]]]`: run the cluster in DIR, with these tenants; its ready line, or the reason for a
    failure, is written to FD (default: standard output). The console is at PORT, if one is given."""
    root = Path(arguments[0]).resolve()
    layout = load_layout(root)
    if layout is None:
        raise SystemExit(f"tidelog: there is no cluster in {root}")
    tenants = [name for name in "".join(arguments[1:2]).split(",") if name]
    out = int(arguments[2]) if len(arguments) > 2 else 1
    console_port = int(arguments[3]) if len(arguments) > 3 else None
    (root / LOGS).mkdir(exist_ok=True)
    configure_logs("info", "supervisor")

    def say(line: str) -> None:
        with contextlib.suppress(OSError):
            if out != 1 and line.startswith(("ready ", "failed ")):
                os.write(out, line.encode() + b"\n")
            elif out == 1:
                shown = f"tidelog: {line[7:]}" if line.startswith("failed ") else line
                os.write(1 if line.startswith("ready ") else 2, shown.encode() + b"\n")

    return Supervisor(root, layout, say, tenants, console_port=console_port).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
