"""The options of an export and their validation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from object_store.uri import InvalidStoreUri, parse_uri
from spark_offload.export.table_columns import RAW, TableColumns, ValueFormat
from spark_offload.options import OptionError
from spark_offload.running.job import JobOptions

FORMATS = ("parquet", "iceberg")
TASK_BYTES = 64 << 20
FILE_BYTES = 128 << 20
ORPHAN_HOURS = 24
_TABLE_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(JobOptions):
    """The destination and format of an export.

    `output` is the URI of a directory or bucket: where Parquet files go, or the warehouse of a catalog of one's own in
    SQLite, whose file is `catalog_file` ("" for one in a warehouse that is a directory). With `catalog`, a name that
    pyiceberg's configuration may know, or `catalog_properties`, as pyiceberg takes them, the table lives there
    instead. `table` is `namespace.name`, by default `tidelog.<topic>`. A task reads about `task_bytes` of log and a
    file does not grow much beyond `file_bytes`. Files that no commit names are removed when they are `orphan_hours`
    old, 0 for never; a run that takes longer does not commit.
    """

    to: str
    output: str = ""
    table: str = ""
    catalog: str = ""
    catalog_properties: tuple[tuple[str, str], ...] = ()
    catalog_file: str = ""
    values: ValueFormat = RAW
    include_headers: bool = False
    task_bytes: int = TASK_BYTES
    file_bytes: int = FILE_BYTES
    orphan_hours: int = ORPHAN_HOURS

    @property
    def has_own_catalog(self) -> bool:
        """Whether it is the one in SQLite."""
        return not self.catalog and not self.catalog_properties

    @property
    def table_name(self) -> str:
        return self.table or "tidelog." + re.sub(r"[^\w-]", "_", self.topics[0])

    def columns(self) -> TableColumns:
        return TableColumns(self.values, include_headers=self.include_headers)

    def check(self) -> None:
        """Raises OptionError."""
        self.reading()
        self.columns()
        if self.to not in FORMATS:
            raise OptionError(f"an export goes to {' or '.join(FORMATS)}, not to {self.to!r}")
        if not self.topics:
            raise OptionError("name the topics to export")
        for name, value, low in (
            ("task_bytes", self.task_bytes, 1 << 10),
            ("file_bytes", self.file_bytes, 1 << 10),
            ("orphan_hours", self.orphan_hours, 0),
        ):
            if value < low:
                raise OptionError(f"{name} is at least {low}, not {value}")
        try:
            place = parse_uri(self.output) if self.output else None
        except InvalidStoreUri as error:
            raise OptionError(f"the output: {error}") from None
        if self.to == "parquet":
            if place is None:
                raise OptionError("an export to Parquet needs an output: the URI of a directory or bucket")
            if self.table or self.catalog or self.catalog_properties or self.catalog_file:
                raise OptionError("a table and a catalog go with an export to Iceberg")
            return
        if len(self.topics) > 1 and not self.table:
            raise OptionError("several topics in one table need the table's name")
        if not _TABLE_NAME.fullmatch(self.table_name):
            raise OptionError(f"a table is named like namespace.name, not {self.table_name!r}")
        if not self.has_own_catalog:
            if place is not None or self.catalog_file:
                raise OptionError("the catalog knows where its tables are: leave out the output and the catalog's file")
            return
        if place is None:
            raise OptionError("an export to Iceberg needs an output, the URI of the warehouse, or a catalog")
        if place.kind != "file" and not self.catalog_file:
            raise OptionError("a warehouse in a bucket needs the file of a catalog in SQLite, or another catalog")
