"""The report of an export."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_offload.running.job import Report, size_text

BAR_WIDTH = 24


@dataclass(slots=True, kw_only=True)
class PartitionReport:
    """One partition: what was there to export, and what the run made of it. Sizes are in bytes.

    `gone` offsets were deleted from the topic before any run had exported them; `missed` ones could not be read and are
    tried again by the next run. Spans are [first, end) pairs.
    """

    topic: str
    partition: int
    exported: list[tuple[int, int]]
    missed: list[tuple[int, int]] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    rows: int = 0
    undecoded: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    files: int = 0


@dataclass(slots=True, kw_only=True)
class ExportReport(Report):
    """`version` is that of the table after the run's commit, "" when there was nothing to commit or the commit was not
    made. `swept` are files that no commit had named."""

    run: str
    to: str
    table: str
    version: str = ""
    partitions: list[PartitionReport] = field(default_factory=list)
    rows: int = 0
    undecoded: int = 0
    log_bytes: int = 0
    file_bytes: int = 0
    files: int = 0
    swept: int = 0
    seconds: float = 0.0
    records_per_second: int = 0
    log_bytes_per_second: int = 0

    def count(self) -> None:
        """Sums of the partitions, and the speed."""
        for name in ("rows", "undecoded", "log_bytes", "file_bytes", "files"):
            setattr(self, name, sum(getattr(one, name) for one in self.partitions))
        if self.seconds > 0:
            self.records_per_second = round(self.rows / self.seconds)
            self.log_bytes_per_second = round(self.log_bytes / self.seconds)

    def lines(self) -> list[str]:
        swept = [f"{self.swept} files that no commit names were removed"] * bool(self.swept)
        if not self.partitions and not self.problems:
            return [f"{self.table}: nothing new to export", *swept]
        most = max((max(one.log_bytes, one.file_bytes) for one in self.partitions), default=0)
        lines = []
        for one in self.partitions:
            lines.append(f"{one.topic}-{one.partition}: offsets {_spans(one.exported)}, {one.rows:,} rows")
            lines.append(f"  log   {_bar(one.log_bytes, most)} {size_text(one.log_bytes)}")
            lines.append(f"  table {_bar(one.file_bytes, most)} {size_text(one.file_bytes)} in {one.files} files")
            lines += [f"  {one.undecoded:,} values could not be decoded: undecoded_value"] * bool(one.undecoded)
            lines += [f"  gone before they were exported: offsets {_spans(one.gone)}"] * bool(one.gone)
            lines += [f"  could not be read: offsets {_spans(one.missed)}"] * bool(one.missed)
        if self.version:
            lines.append(
                f"{self.table}: version {self.version}, {self.rows:,} rows, {size_text(self.log_bytes)} of log as "
                f"{size_text(self.file_bytes)} in {self.seconds:.1f} s "
                f"({self.records_per_second:,} records/s, {size_text(self.log_bytes_per_second)}/s)"
            )
        elif self.partitions:
            lines.append(f"{self.table}: nothing was committed")
        return lines + swept + Report.lines(self)


def _spans(spans: list[tuple[int, int]]) -> str:
    return ", ".join(f"{first} to {end - 1}" for first, end in spans) or "none"


def _bar(size: int, most: int) -> str:
    return ("█" * -(-size * BAR_WIDTH // most) if most else "").ljust(BAR_WIDTH)
