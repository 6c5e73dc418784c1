"""An Apache Iceberg table, committed by pyiceberg: no Java library is needed.

The offsets that the table holds stand in the properties of each snapshot of an export. The newest of them on the way
back from the current snapshot counts, so that a table which was rolled back is filled again; snapshots of others, such
as those of compaction, carry none. A copy in the table's own properties, written by the same commit, counts once all
such snapshots have expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import PY_IO_IMPL, S3_SIGNER, FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform

from object_store.blocking import BlockingStore
from object_store.uri import StoreUri, parse_uri
from spark_offload.export.day_files import UNCOMPARED_LEAVES, FileTarget
from spark_offload.export.offset_spans import decode_exported, encode_exported, with_spans
from spark_offload.export.options import ExportOptions
from spark_offload.export.tables import Addition, CommitConflict, TableState, check_columns
from spark_offload.options import OptionError
from spark_offload.segments.column_names import PARTITION, TIMESTAMP, TOPIC

EXPORTED, RUN, UNDECODED, CLUSTER = "tidelog.exported", "tidelog.run", "tidelog.undecoded", "tidelog.cluster"
CATALOG_NAME = "tidelog"
CATALOG_FILE = "catalog.sqlite"
RETRIES = "commit.retry.num-retries"
FILE_IOS_MAX = 4
OWN_FOLDER = "tidelog"  # below the table's data; files elsewhere are never swept, because others wrote them

_OF_FILE_SYSTEMS = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.", PY_IO_IMPL)
_OF_SIGNERS = ("uri", "token")

_METRICS = {f"write.metadata.metrics.column.{name}": "none" for name in UNCOMPARED_LEAVES}


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """Executors write with the table's own file system: its catalog may hand out the credentials for it."""

    folder: str
    properties: tuple[tuple[str, str], ...]

    def put(self, name: str, data: pa.Buffer) -> str:
        path = f"{self.folder}/{name}"
        with _file_io(self.folder, self.properties).new_output(path).create() as stream:
            stream.write(data.to_pybytes())
        return path


@lru_cache(FILE_IOS_MAX)
def _file_io(folder: str, properties: tuple[tuple[str, str], ...]) -> FileIO:
    return load_file_io(dict(properties), folder)


class IcebergTable:
    """The table `name` of a catalog, which is closed with it."""

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.name = name
        self._identifier = tuple(name.split("."))
        self._catalog = catalog

    def prepare(self, schema: pa.Schema) -> None:
        table = self._created(schema)
        known = pa.schema([(field.name, _plain(field.type)) for field in table.schema().as_arrow()])
        check_columns(known, schema, self.name)
        if len(known) < len(schema):
            with table.update_schema() as update:
                update.union_by_name(schema)

    def state(self) -> TableState:
        table = self._load()
        current = table.metadata.current_snapshot()
        text = next((one for snapshot in _ancestors(table) if (one := _property(snapshot, EXPORTED))), None)
        text = text or (table.properties.get(EXPORTED) if current is not None else None)
        runs = frozenset(run for snapshot in table.metadata.snapshots if (run := _property(snapshot, RUN)))
        return TableState(_version(table), decode_exported(text) if text else {}, runs)

    def target(self) -> FileTarget:
        table = self._load()
        return IcebergTarget(_folder(table), file_system_properties(table.io.properties))

    def commit(self, state: TableState, addition: Addition) -> str:
        table = self._load()
        if _version(table) != state.version:
            raise CommitConflict(f"{self.name} has another snapshot by now")
        # pyiceberg would put the same files on top of whatever beat it, and these may be the same records.
        properties = {**table.metadata.properties, RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        exported = encode_exported(with_spans(state.exported, addition.spans))
        properties = {
            EXPORTED: exported,
            RUN: addition.run,
            CLUSTER: addition.cluster_id,
            UNDECODED: str(addition.undecoded),
        }
        try:
            with table.transaction() as transaction:
                transaction.set_properties({EXPORTED: exported})
                paths = [file.path for file in addition.files]
                transaction.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)
        except CommitFailedException as error:
            raise CommitConflict(f"{self.name}: {error}") from error
        return _version(table)

    def delete(self, paths: Sequence[str]) -> None:
        io = self._load().io
        for path in paths:
            io.delete(path)

    def sweep(self, before_ms: int) -> int:
        table = self._load()
        # Listed first: a file that is committed meanwhile is then found among those of the snapshots.
        old = list(_files_before(table, before_ms))
        if not old:
            return 0
        named = set(self._load().inspect.all_files()["file_path"].to_pylist())
        orphans = [path for path in old if path not in named]
        self.delete(orphans)
        return len(orphans)

    def close(self) -> None:
        self._catalog.close()

    def _load(self) -> Table:
        return self._catalog.load_table(self._identifier)

    def _created(self, schema: pa.Schema) -> Table:
        with suppress(NoSuchTableError, NoSuchNamespaceError):
            return self._load()
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(self._identifier[:-1])
        # Another run may make it at the same moment.
        with suppress(TableAlreadyExistsError, CommitFailedException):
            transaction = self._catalog.create_table_transaction(self._identifier, schema, properties=_METRICS)
            with transaction, transaction.update_spec() as spec:
                spec.add_identity(TOPIC)
                spec.add_identity(PARTITION)
                spec.add_field(TIMESTAMP, DayTransform(), f"{TIMESTAMP}_day")
        return self._load()


def open_catalog(options: ExportOptions) -> Catalog:
    """The catalog that the options name, else one in SQLite beside the warehouse or where they say."""
    if not options.has_own_catalog:
        return _configured_catalog(options.catalog or CATALOG_NAME, dict(options.catalog_properties))
    place = parse_uri(options.output)
    if place.kind == "file":
        BlockingStore(place, create=True).close()
    path = options.catalog_file or f"{place.path}/{CATALOG_FILE}"
    return load_catalog(
        CATALOG_NAME, type="sql", uri=f"sqlite:///{path}", warehouse=place.name, **file_io_properties(place)
    )


def _configured_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """What pyiceberg says of a catalog that it does not know may have all properties in it, and these secrets."""
    try:
        return load_catalog(name, **properties)
    except ValueError:
        reason = "pyiceberg's configuration and the properties do not say enough: a type, and for most of them a uri"
        raise OptionError(f"the catalog {name!r} cannot be opened: {reason}") from None


def file_system_properties(properties: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """What executors need of a table's properties, which have the catalog's own credentials among them. Only where the
    catalog signs each request for them do they speak to it, with the token that it gave the driver."""
    wanted = _OF_SIGNERS if S3_SIGNER in properties else ()
    return tuple(
        (name, str(properties[name]))
        for name in sorted(properties)
        if name in wanted or name.startswith(_OF_FILE_SYSTEMS)
    )


def file_io_properties(place: StoreUri) -> dict[str, str]:
    """A store's address as properties of pyiceberg. Credentials come from the usual chain of AWS, as for the tier."""
    if place.kind == "file":
        return {}
    found = {"s3.force-virtual-addressing": str(place.addressing == "virtual").lower()}
    if place.endpoint:
        # Without a region pyiceberg asks AWS for that of the bucket, which a server of one's own is not in.
        found |= {"s3.endpoint": place.endpoint, "s3.region": place.region or "us-east-1"}
    elif place.region:
        found["s3.region"] = place.region
    return found


def _version(table: Table) -> str:
    current = table.metadata.current_snapshot()
    return str(current.snapshot_id) if current is not None else ""


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """Snapshots from the current one back that have not expired."""
    snapshot = table.metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.metadata.snapshot_by_id(parent) if parent is not None else None


def _property(snapshot: Snapshot, name: str) -> str | None:
    return snapshot.summary.additional_properties.get(name) if snapshot.summary is not None else None


def _folder(table: Table) -> str:
    data = table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data"
    return f"{data.rstrip('/')}/{OWN_FOLDER}"


def _files_before(table: Table, before_ms: int) -> Iterator[str]:
    """Files below this table's folder for exports; none where the file system cannot be listed."""
    io, folder = table.io, _folder(table)
    if not isinstance(io, PyArrowFileIO):
        return
    scheme, netloc, path = io.parse_location(folder)
    found = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    for info in found:
        if info.type == FileType.File and info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms:
            yield folder + info.path[len(path) :]


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with small offsets, for comparisons: Arrow has two types for many things, and Iceberg reports the larger
    ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
