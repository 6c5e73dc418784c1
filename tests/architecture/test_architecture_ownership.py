"""Who changes what: an object's fields are assigned by its own methods alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What is still to be mended, by file. The list only shrinks: what is gone from the code goes from here as well.
TO_DO = {
    "audit_journal.py": "outstanding.is_durable",
    "cleaner.py": "checkpoints.pacer",
    "cleaning_pass.py": "self._map.latest_offset",
    "compaction_filter.py": """
        aborted.has_records offset_map.latest_offset self.counts.batches self.counts.batches_dropped
        self.counts.batches_unreadable self.counts.records_dropped self.counts.records_without_key
    """,
    "directory_files.py": "state.cleaned state.high_watermarks state.log_starts state.recovery_points state.strays",
    "leader_epochs.py": "cache._is_saved",
    "log_directory.py": """
        context.checkpoints.pacer context.snapshots.pacer health.on_failed self._context.writer.slow
        self._health.is_closing
    """,
    "log_scan.py": """
        loaded.log_end_offset loaded.lost_records loaded.producers.end_offset segment.bytes_since_index segment.size
        segment.transaction_bytes segment.written self._loaded.lost_records
    """,
    "log_writer.py": "handle.recently_used",
    "open_files.py": "handle.file handle.recently_used",
    "producer_bound.py": "producers.queued_turn",
    "producer_replay.py": "log.producers.end_offset self.producers.end_offset",
    "producer_state.py": "self._bound.count",
    "recovery.py": """
        loaded.epochs loaded.is_new loaded.log_end_offset loaded.log_start_offset loaded.lost_records
        loaded.names_changed loaded.recovery_point loaded.segments loaded.snapshots
    """,
}


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is the target of an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node


def foreign(path: Path) -> set[str]:
    """Assigned fields of anything but the object itself; a constructor's names it `self` as well."""
    targets = assigned(ast.parse(path.read_text()))
    return {
        ast.unparse(one) for one in targets if not (isinstance(one.value, ast.Name) and one.value.id in ("self", "cls"))
    }


def test_nothing_in_storage_assigns_to_another_objects_field() -> None:
    found = {path.name: names for path in sorted((ROOT / "storage").glob("*.py")) if (names := foreign(path))}
    assert found == {name: set(fields.split()) for name, fields in TO_DO.items()}


def test_storage_hides_no_circle_of_imports() -> None:
    files = (ROOT / "storage").glob("*.py")
    assert [path.name for path in files if "TYPE_CHECKING" in path.read_text()] == []
