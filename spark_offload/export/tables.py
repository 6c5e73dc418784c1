"""The interface of a table for exports: its state, one commit on top of that state, and sweeping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from object_store.errors import StoreError
from spark_offload.export.day_files import FileTarget, WrittenFile
from spark_offload.export.offset_spans import Exported, Place, Spans, collide
from spark_offload.options import OptionError

COMMITS_MAX = 10  # of one run, each beaten by another commit that exported other offsets


class CommitConflict(Exception):
    """Somebody committed since the state was read; nothing of this commit is in the table."""


class Beaten(Exception):
    """Another run exported the same offsets meanwhile; nothing of this one is in the table, nor left of its files."""


class TableMismatch(OptionError):
    """The existing table does not match this export."""


@dataclass(frozen=True, slots=True)
class TableState:
    """`version` is opaque, "" before the first commit; `runs` are those whose commit the table is known to have."""

    version: str = ""
    exported: Exported = field(default_factory=dict)
    runs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Addition:
    """One run's commit. `spans` are the offsets that it adds; the table has them all afterwards, or none."""

    run: str
    cluster_id: str
    committed_ms: int
    spans: Mapping[Place, Spans]
    files: Sequence[WrittenFile]
    undecoded: int = 0


class ExportTable(Protocol):
    @property
    def name(self) -> str:
        """For people."""
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or check that rows of `schema` fit the existing one. Raises TableMismatch."""
        ...

    def state(self) -> TableState: ...

    def target(self) -> FileTarget: ...

    def commit(self, state: TableState, addition: Addition) -> str:
        """Atomic, and only on top of `state`: raises CommitConflict. Gives the new version.

        After any other error it is unknown whether the commit was made.
        """
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Data files that were never committed."""
        ...

    def sweep(self, before_ms: int) -> int:
        """Delete data files that no commit names and that were last written before that time; how many."""
        ...

    def close(self) -> None: ...


def check_columns(known: pa.Schema, schema: pa.Schema, table: str) -> None:
    """A table may get new columns, but keeps those that it has. Raises TableMismatch."""
    for column in known:
        at = schema.get_field_index(column.name)
        if at < 0 or not schema.field(at).type.equals(column.type):
            found = schema.field(at).type if at >= 0 else "no such column"
            raise TableMismatch(f"{table} has the column {column.name} {column.type}, this export {found}")


def commit_addition(table: ExportTable, state: TableState, addition: Addition) -> str:
    """The new version, on top of `state` or of a newer one that has none of these offsets. Raises Beaten."""
    reason = ""
    for _ in range(COMMITS_MAX):
        try:
            return table.commit(state, addition)
        except CommitConflict as conflict:
            reason = str(conflict)
        state = table.state()
        if addition.run in state.runs:  # the response was lost, not the commit
            return state.version
        if collide(state.exported, addition.spans):
            reason = "another run exported the same offsets meanwhile"
            break
    with suppress(StoreError, OSError):  # remaining files are swept by age
        table.delete([file.path for file in addition.files])
    raise Beaten(reason)
