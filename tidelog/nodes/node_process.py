"""One node as a process: its event loop, its signals, its logs and its health page.

Both ways of running a node end here: forked by the supervisor of an embedded cluster, or in the foreground for a
container or a service manager (`tidelog broker --config FILE`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import uvloop

from common.errors import StorageFailure
from common.lifecycle import watch_tasks
from common.machine import machine_ports
from common.metrics import Metrics
from common.node_settings.audit import AuditSettings
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.health import HealthSettings
from common.node_settings.identity import NodeSettings
from common.node_settings.tier import TierSettings
from common.settings import SettingError
from kraft.observers.broker_lifecycle import RegistrationRefused
from kraft.quorum.voter_guard import VoterRefused
from object_store.limits import StoreLimits
from object_store.opening import open_store
from tidelog.configuration.listener_config import host_and_port
from tidelog.configuration.node_config import broker_config, data_directory
from tidelog.nodes.descriptors import divide, raise_limit
from tidelog.nodes.directory_lock import DirectoryInUse, held_directory
from tidelog.nodes.disk_probe import DiskSilent, wait_for_disk
from tidelog.nodes.http_endpoint import HttpEndpoint
from tidelog.nodes.logs import configure_logs
from tidelog.nodes.loop_watch import LoopWatch
from tidelog.nodes.node_imports import import_certificates
from tidelog.nodes.process_metrics import register_node, register_process
from tidelog.nodes.stack_sampling import StackSampling, log_held
from tidelog.nodes.storage_watchdog import StorageWatchdog

logger = logging.getLogger(__name__)
EXIT_FATAL = 70  # EX_SOFTWARE: the node must not continue
REASON_CHARACTERS_MAX = 500
# The collector's thresholds. A collection of the youngest generation visits 5,000 containers, one of the middle
# generation 55,000: some 5 ms on the event loop. Few objects are in cycles: a full collection comes after 50 million
# more at the earliest.
GARBAGE_ROUNDS = (5_000, 10, 1_000)


class Node(Protocol):
    """The common interface of a broker and a controller for their process."""

    metrics: Metrics

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def wait_ready(self) -> None: ...
    def ready_problem(self) -> str | None: ...
    def health_problem(self) -> str | None: ...


def run_node(role: str, settings: Mapping[str, str], *, status_fd: int = -1, life_fd: int = -1) -> int:
    """Run a node until a signal stops it; returns its exit status.

    The node writes a line to `status_fd` when it serves, and one with the cause when it ends by itself. The end of
    `life_fd` means that the parent has ended.
    """
    values = NODE_SETTINGS.values(settings)
    own = values.group(NodeSettings)
    configure_logs(own.log_level, f"{role}-{own.node_id}")
    fatal: list[str] = []

    def fail(reason: str) -> None:
        logger.critical("node stops: %s", reason)
        fatal.append(reason)
        _report_end(status_fd, reason)

    import_certificates(settings)
    gc.set_threshold(*GARBAGE_ROUNDS)
    try:
        descriptors = raise_limit()
        wait_for_disk(data_directory(values), logger.warning)
        watch = LoopWatch()
        with (
            held_directory(data_directory(values)),
            StackSampling(watch, log_held(watch)),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(_run(role, settings, descriptors, watch, fail, status_fd, life_fd))
    except (SettingError, DirectoryInUse, DiskSilent) as error:
        fail(str(error))
    return EXIT_FATAL if fatal else 0


async def _run(
    role: str,
    settings: Mapping[str, str],
    descriptors: int,
    watch: LoopWatch,
    fatal: Callable[[str], None],
    status_fd: int,
    life_fd: int,
) -> None:
    values = NODE_SETTINGS.values(settings)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    failed = False

    def fail(reason: str) -> None:
        nonlocal failed
        failed = True
        fatal(reason)
        ended.set()

    watch_tasks(loop, fail)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if life_fd >= 0:
        os.set_blocking(life_fd, False)
        loop.add_reader(life_fd, _parent_gone, loop, life_fd, ended.set)
    node, watchdog = await _make_node(role, settings, descriptors, fail, status_fd)
    watch.register(node.metrics)
    watchdog.register(node.metrics)
    register_node(node.metrics, role)
    register_process(node.metrics)
    endpoint = HttpEndpoint(node.metrics, node.ready_problem, node.health_problem)
    page = values.group(NodeSettings).metrics_listener
    try:
        await endpoint.start(*host_and_port(page, "tidelog.metrics.listener"))
    except OSError as error:
        fail(f"tidelog.metrics.listener: {page} cannot be bound: {os.strerror(error.errno or 0)}")
        return
    watchdog.start()
    starting = asyncio.create_task(_start(node, status_fd, fail))
    await ended.wait()
    if not starting.done():
        starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    if not failed:
        await node.stop()
    await endpoint.stop()
    watchdog.stop()


async def _make_node(
    role: str, settings: Mapping[str, str], descriptors: int, fail: Callable[[str], None], status_fd: int
) -> tuple[Node, StorageWatchdog]:
    """The node, and what watches its storage."""
    values = NODE_SETTINGS.values(settings)
    ports = machine_ports(data_directory(values))
    health, report = values.group(HealthSettings), partial(_report_end, status_fd)
    if role == "broker":
        from broker.listeners import load_certificates  # noqa: PLC0415  imported already, see node_imports
        from broker.node import BrokerNode  # noqa: PLC0415

        limits = StoreLimits(own_directory=str(data_directory(values)))
        config = divide(broker_config(settings), descriptors)
        certificates = await asyncio.to_thread(load_certificates, config.listeners)
        node = BrokerNode(ports, config, fail, partial(open_store, limits=limits), certificates)
        operations = node.logs.context.health.operations
        return node, StorageWatchdog(settings=health, report=report, operations=operations, withdraw=node.withdraw)
    from kraft.controller.node import ControllerNode  # noqa: PLC0415
    from tidelog.configuration.controller_config import controller_config  # noqa: PLC0415

    controller = ControllerNode(ports, controller_config(settings), fail)
    watchdog = StorageWatchdog(settings=health, report=report)
    tier, keep_ms = values.group(TierSettings), values.group(AuditSettings).export_retention_ms
    if not tier.uri:
        return controller, watchdog
    from tidelog.nodes.exporting_controller import ExportingController  # noqa: PLC0415

    interval_s = tier.export_interval_ms / 1000
    return ExportingController(ports, controller, tier.uri, interval_s, tier.spark_schedule, keep_ms), watchdog


def _report(status_fd: int, line: str) -> None:
    if status_fd >= 0:
        with contextlib.suppress(OSError):
            os.write(status_fd, line.encode() + b"\n")


def _report_end(status_fd: int, reason: str) -> None:
    _report(status_fd, f"fatal {' '.join(reason.split())[:REASON_CHARACTERS_MAX]}")


async def _start(node: Node, status_fd: int, fail: Callable[[str], None]) -> None:
    try:
        await node.start()
        await node.wait_ready()
    except asyncio.CancelledError:
        raise
    except (OSError, StorageFailure, RegistrationRefused, VoterRefused) as error:
        fail(error.strerror or str(error) if isinstance(error, OSError) else str(error))
        return
    except Exception as error:
        logger.exception("node did not start")
        fail(str(error) or type(error).__name__)
        return
    gc.collect()
    gc.freeze()  # modules, schemas and the first state live until the end: exclude them from collections
    logger.info("node serves")
    _report(status_fd, "ready")


def _parent_gone(loop: asyncio.AbstractEventLoop, life_fd: int, ended: Callable[[], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        if not os.read(life_fd, 1):
            loop.remove_reader(life_fd)
            logger.warning("the supervisor has ended, so this node stops")
            ended()
