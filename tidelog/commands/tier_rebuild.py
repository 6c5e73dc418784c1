"""`tidelog tier rebuild | commit-offsets`: a cluster from its object store alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.machine import MachineClock
from common.settings import SettingError
from tidelog.admin.admin_client import ClusterOptions, CommandOptions, admin_client
from tidelog.commands.cluster import prepare_cluster, require_layout, start_detached
from tidelog.output import EXIT_USAGE, Json, fail, show

if TYPE_CHECKING:
    from kraft.rebuilding.rebuild import NamedBroker
    from tidelog.admin.library_client import AdminClient
    from tidelog.tier.rebuild import Prepared

REBUILD_FILE = "rebuild.metadata"


def rebuild(
    tier: Annotated[str, typer.Option("--tier", help="The object store of the old cluster.", metavar="URI")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Start a cluster on this machine, in this new directory.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Or only write what new controllers begin with, into this file.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Its id, if the store has several.")] = None,
    brokers: Annotated[int | None, typer.Option(min=1, help="With --data: how many brokers; 3 in each cell.")] = None,
    cells: Annotated[int | None, typer.Option(help="With --data: how many cells of brokers: a, b, ….")] = None,
    controllers: Annotated[int | None, typer.Option(help="With --data: how many controllers; 3.")] = None,
    port: Annotated[int | None, typer.Option(help="With --data: broker i listens on this port + i; 9092.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With --data: a setting.", metavar="NAME=VALUE")
    ] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option(
            "--broker", help="With --out: a broker to come; those of the old cluster.", metavar="ID[:RACK[:CELL]]"
        ),
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="The old cluster is known to be dead: do not wait until it has noticed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a cluster from an object store alone, and say what was not there. An old cluster stops writing to it.

    Topics keep ids, settings and offsets; groups keep what they committed, up to where the tier ends.
    """
    from tidelog.tier.rebuild import write_files  # noqa: PLC0415

    if (data is None) == (out is None):
        fail("give either --data DIR, to start a cluster on this machine, or --out FILE", EXIT_USAGE)
    places = _broker_places(broker or [])
    if out is not None:
        report = _write(out, tier, cluster, places, no_wait)
    elif data is not None:
        with _files(), _new_directory(data.resolve()):
            path = data.resolve() / REBUILD_FILE
            assignments = [*(set_ or []), f"tidelog.metadata.rebuild.file={path}"]
            root = prepare_cluster(data, brokers, controllers, port, assignments, tier, cells=cells)
            _check_nodes(root)
            prepared = _prepare(tier, cluster, _local_places(root), no_wait)
            write_files(prepared, path, MachineClock().wall_ms())
        report = prepared.report | {"bootstrap": _start(root, data, path, prepared.incarnation)}
        with admin_client(ClusterOptions(report["bootstrap"])) as client:
            report["not_there"] += commit(client, prepared.offsets)
    _show(report, as_json)


def commit_offsets(
    file: Annotated[Path, typer.Argument(help="What `rebuild --out FILE` wrote as FILE.offsets.")],
    options: CommandOptions,
) -> None:
    """Restore the committed offsets of a rebuilt cluster's groups. Groups that have committed since keep theirs."""
    from records.events import DamagedEvents  # noqa: PLC0415
    from tidelog.tier.rebuild import read_offsets  # noqa: PLC0415

    with _files():
        try:
            offsets = read_offsets(file)
        except DamagedEvents as error:
            fail(str(error))
    with admin_client(options) as client:
        problems = commit(client, offsets)
    report = {"groups": len({event["group"] for event in offsets}), "offsets": len(offsets), "not_committed": problems}
    if options.as_json:
        print(json.dumps(report))
    else:
        show([report], as_json=False, columns=["groups", "offsets"])
        _tell(problems)
    if problems:
        raise typer.Exit(1)


def commit(client: AdminClient, offsets: Iterable[dict[str, Any]]) -> list[str]:
    """Commits the offsets; returns a message for each group or partition that was not committed."""
    from kafka import TopicPartition  # noqa: PLC0415
    from kafka.errors import KafkaError  # noqa: PLC0415
    from kafka.structs import OffsetAndMetadata  # noqa: PLC0415

    by_group: dict[str, dict[Any, Any]] = {}
    for event in offsets:
        place = TopicPartition(event["topic"], event["partition"])
        by_group.setdefault(event["group"], {})[place] = OffsetAndMetadata(event["offset"], event["metadata"], -1)
    problems: list[str] = []
    for group, wanted in by_group.items():
        try:
            present = client.list_group_offsets({group: list(wanted)})[group]
            missing = {p: offset for p, offset in wanted.items() if p not in present or present[p].offset < 0}
            if len(missing) < len(wanted):
                problems.append(f"group {group} has committed {len(wanted) - len(missing)} of its partitions itself")
            results = client.alter_group_offsets(group, missing) if missing else {}
        except KafkaError as error:
            problems.append(f"group {group}: its offsets are not committed: {error}")
            continue
        problems += [
            f"group {group}: {place.topic}-{place.partition} is not committed: {_name_of(result)}"
            for place, result in results.items()
            if _name_of(result) != "NoError"
        ]
    return problems


def _name_of(result: Any) -> str:
    kind = result["error"] if isinstance(result, dict) else result
    return str(getattr(kind, "__name__", kind))


def _write(out: Path, tier: str, cluster: str | None, places: list[NamedBroker], no_wait: bool) -> dict[str, Any]:
    """With --out. Reports what was done and what was missing."""
    from tidelog.tier.rebuild import offsets_path, write_files  # noqa: PLC0415

    for path in (out, offsets_path(out)):
        if path.is_dir():
            fail(f"--out: {path} is a directory", EXIT_USAGE)
        if path.exists() and not os.access(path, os.W_OK):
            fail(f"--out: {path} cannot be written", EXIT_USAGE)
    with _files():
        with tempfile.TemporaryFile(dir=out.resolve().parent):  # checks that files can be created there
            pass
        prepared = _prepare(tier, cluster, places, no_wait)
        write_files(prepared, out, MachineClock().wall_ms())
    return prepared.report | {"file": str(out), "offsets_file": str(offsets_path(out))}


def _check_nodes(root: Path) -> None:
    """Check that nodes of each role would start with their settings; ends the command otherwise."""
    from tidelog.configuration.controller_config import controller_config  # noqa: PLC0415
    from tidelog.configuration.node_config import broker_config  # noqa: PLC0415

    layout = require_layout(root)
    try:
        broker_config(layout.node_settings(layout.brokers[0], root))
        not_written_yet = {"tidelog.metadata.rebuild.file": ""}
        controller_config(layout.node_settings(layout.controllers[0], root) | not_written_yet)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)


@contextmanager
def _new_directory(data: Path) -> Iterator[None]:
    """`data` is new or empty. If the block fails, everything created in it is removed."""
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        fail(f"{data} is there already, and is no empty directory; name a new one", EXIT_USAGE)
    made = [path for path in (data, *data.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in data.iterdir() if data.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise


def _start(root: Path, data: Path, path: Path, incarnation: int) -> str:
    """Start the cluster; returns its bootstrap addresses. If it does not start, its files stay, because it owns the
    store by now."""
    from tidelog.tier.rebuild import offsets_path  # noqa: PLC0415

    try:
        return start_detached(root).partition("bootstrap=")[2]
    except typer.Exit:
        _warn(
            f"the object store belongs to incarnation {incarnation} by now, which is the cluster in {data}: "
            f"`tidelog up --data {data}` starts it, and then `tidelog tier commit-offsets {offsets_path(path)} "
            f"--data {data}` gives groups their offsets"
        )
        raise


def _warn(text: str) -> None:
    print(f"tidelog: {text}", file=sys.stderr)


def _prepare(tier: str, cluster: str | None, places: list[NamedBroker], no_wait: bool) -> Prepared:
    """Check that the bucket is readable, take it over, and read it as the old cluster has left it; ends the command if
    that fails."""
    from kraft.rebuilding.rebuild import CannotRebuild  # noqa: PLC0415
    from object_store.blocking import BlockingStore  # noqa: PLC0415
    from object_store.errors import StoreError  # noqa: PLC0415
    from object_store.uri import InvalidStoreUri  # noqa: PLC0415
    from tidelog.tier.rebuild import OLD_CLUSTER_WAIT_S, choose_cluster, look, prepare, take_over  # noqa: PLC0415

    chance = random.SystemRandom()
    wait_s = 0.0 if no_wait else OLD_CLUSTER_WAIT_S
    taken: list[int] = []
    done = False
    try:
        with BlockingStore(tier) as store:
            cluster_id = store.wait(lambda: choose_cluster(store.store, cluster))
            seen = store.wait(lambda: look(store.store, cluster_id, places, chance))
            now_ms = MachineClock().wall_ms()
            incarnation = store.wait(lambda: take_over(store.store, seen, wait_s, now_ms, taken.append))
            prepared = store.wait(lambda: prepare(store.store, cluster_id, incarnation, places, chance))
            done = True
            return prepared
    except InvalidStoreUri as error:
        fail(f"--tier: {error}", EXIT_USAGE)
    except StoreError as error:
        fail(f"the object store does not do what is needed: {error}")
    except CannotRebuild as error:
        fail(str(error))
    finally:
        if taken and not done:
            _warn(f"the object store was taken over already, as incarnation {taken[0]}: rebuild again")


def _local_places(root: Path) -> list[NamedBroker]:
    from kraft.image.cells import DEFAULT_CELL  # noqa: PLC0415
    from kraft.rebuilding.rebuild import NamedBroker  # noqa: PLC0415

    brokers = require_layout(root).brokers
    return [NamedBroker(node.node_id, node.rack or None, node.cell or DEFAULT_CELL) for node in brokers]


def _broker_places(texts: list[str]) -> list[NamedBroker]:
    from kraft.rebuilding.rebuild import NamedBroker  # noqa: PLC0415

    found = []
    for text in texts:
        digits, *places = text.split(":")
        if not (digits.isascii() and digits.isdigit()) or len(places) > 2:
            fail(f"--broker {text!r}: it must be ID, ID:RACK or ID:RACK:CELL", EXIT_USAGE)
        rack, cell = (*places, "", "")[:2]
        found.append(NamedBroker(int(digits), rack or None, cell))
    if len({place.broker_id for place in found}) != len(found):
        fail("--broker: an id is given twice", EXIT_USAGE)
    return found


@contextmanager
def _files() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(f"{error.filename or 'the file'}: {error.strerror}")


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    if "bootstrap" in report:
        print(f"ready bootstrap={report['bootstrap']}")
    else:
        print(f"wrote {report['file']} and {report['offsets_file']}")
    print(
        f"cluster {report['cluster_id']}, incarnation {report['incarnation']}, metadata of "
        f"{report['metadata_of'] or 'manifests alone'}, {report['offsets']} offsets of {report['groups']} groups"
    )
    rows = [
        {"topic": topic["topic"], "tiered": topic["tiered"]} | partition
        for topic in report["topics"]
        for partition in topic["partitions"]
    ]
    show(rows, as_json=False, columns=["topic", "partition", "tiered", "log_start_offset", "end_offset"], empty="empty")
    _tell(report["not_there"])


def _tell(sentences: list[str]) -> None:
    for sentence in sentences:
        print(f"not there: {sentence}")
