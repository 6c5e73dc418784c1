"""A table of Parquet files in an object store, without a catalog.

Data lies under `timestamp_day=…/`. A run is committed by one small object, `_commits/<version>.json`, which
is only ever created: of two runs that would be the same version one loses. It names the run's files and holds the
offsets that the table has with it. Whatever no such object names is not part of the table. `_SUCCESS` follows each
commit and says the same version, for those who wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from object_store.blocking import BlockingStore
from object_store.errors import ObjectExists
from spark_offload.export.day_files import FileTarget, WrittenFile
from spark_offload.export.offset_spans import decode_exported, encode_exported, with_spans
from spark_offload.export.table_columns import DAY
from spark_offload.export.tables import Addition, CommitConflict, TableMismatch, TableState
from spark_offload.reading.task import store_at

COMMITS = "_commits/"
SUCCESS = "_SUCCESS"
DATA = f"{DAY}="
FORMAT = 1
VERSION_DIGITS = 20
PARALLEL_READS = 16
DELETED_AT_ONCE = 500


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """`exported` are all offsets of the table as `offset_spans.encode_exported` writes them, `columns` the schema of
    this run's files as [name, type] pairs, paths relative to the table."""

    format: int
    version: int
    run: str
    cluster_id: str
    committed_ms: int
    columns: list[tuple[str, str]]
    files: list[WrittenFile]
    undecoded: int
    exported: str


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """Executors write with the tier's own client of object stores: same credentials, retries, durable when it says."""

    uri: str

    def put(self, name: str, data: pa.Buffer) -> str:
        store_at(self.uri).put(name, data.to_pybytes(), create_only=True)
        return name


class ParquetTable:
    """The table at a URI. Raises InvalidStoreUri, StoreError; ValueError for a commit that no export wrote."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._store = BlockingStore(uri, create=True)
        self.name = self._store.name
        self._columns: list[tuple[str, str]] = []

    def prepare(self, schema: pa.Schema) -> None:
        self._columns = column_words(schema)
        newest = self._newest()
        if newest is not None:
            words = dict(self._columns)
            for name, kind in newest.columns:
                if words.get(name) != kind:
                    found = words.get(name, "no such column")
                    raise TableMismatch(f"{self.name} has the column {name} {kind}, this export {found}")

    def state(self) -> TableState:
        newest = self._newest()
        if newest is None:
            return TableState()
        return TableState(str(newest.version), decode_exported(newest.exported), frozenset({newest.run}))

    def target(self) -> FileTarget:
        return StoreTarget(self._uri)

    def commit(self, state: TableState, addition: Addition) -> str:
        version = int(state.version or 0) + 1
        commit = Commit(
            format=FORMAT,
            version=version,
            run=addition.run,
            cluster_id=addition.cluster_id,
            committed_ms=addition.committed_ms,
            columns=self._columns,
            files=list(addition.files),
            undecoded=addition.undecoded,
            exported=encode_exported(with_spans(state.exported, addition.spans)),
        )
        try:
            self._store.put(commit_key(version), msgspec.json.encode(commit), create_only=True)
        except ObjectExists:
            raise CommitConflict(f"{self.name} has a version {version} already") from None
        self._store.put(SUCCESS, msgspec.json.encode({"version": version, "run": addition.run}))
        return str(version)

    def delete(self, paths: Sequence[str]) -> None:
        for at in range(0, len(paths), DELETED_AT_ONCE):
            self._store.delete(paths[at : at + DELETED_AT_ONCE])

    def sweep(self, before_ms: int) -> int:
        # Listed first: a file that is committed meanwhile is then found among those of the commits.
        old = [info.key for info in self._store.list("") if info.key.startswith(DATA) and info.modified_ms < before_ms]
        if not old:
            return 0
        named = {file.path for commit in self.commits() for file in commit.files}
        orphans = [key for key in old if key not in named]
        self.delete(orphans)
        return len(orphans)

    def commits(self) -> list[Commit]:
        """All of them, in order."""
        names = [name for name in self._store.list_names(COMMITS) if name.endswith(".json")]
        with ThreadPoolExecutor(PARALLEL_READS, "tidelog-commits") as pool:
            return [*pool.map(self._read, names)]

    def close(self) -> None:
        self._store.close()

    def _newest(self) -> Commit | None:
        names = [name for name in self._store.list_names(COMMITS) if name.endswith(".json")]
        return self._read(names[-1]) if names else None

    def _read(self, name: str) -> Commit:
        data = self._store.get(COMMITS + name)
        try:
            commit = msgspec.json.decode(data, type=Commit)
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.name}, object {COMMITS}{name}: {error}") from error
        if commit.format != FORMAT or commit_key(commit.version) != COMMITS + name:
            raise ValueError(f"{self.name}, object {COMMITS}{name}: format {commit.format}, version {commit.version}")
        return commit


def committed_files(uri: str) -> list[WrittenFile]:
    """The files of the table at `uri` in the order of their commits, with paths relative to it: for users' programs."""
    table = ParquetTable(uri)
    try:
        return [file for commit in table.commits() for file in commit.files]
    finally:
        table.close()


def commit_key(version: int) -> str:
    return f"{COMMITS}{version:0{VERSION_DIGITS}}.json"


def column_words(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema]
