"""Figures in docs/ are those of bench/results, and change with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.doc_tables import BLOCK, DOCS, RESULTS, TABLES, rewritten

PAGES = sorted(path for path in DOCS.rglob("*.md") if "<!-- figures" in path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_results(path: Path) -> None:
    """`python -m bench.doc_tables` writes them."""
    page = path.read_text()
    assert page.count("<!-- figures") == page.count("<!-- end -->") == len(BLOCK.findall(page))
    assert rewritten(page) == page


def test_every_table_is_on_a_page() -> None:
    assert sorted(found[1] for path in PAGES for found in BLOCK.findall(path.read_text())) == sorted(TABLES)


def test_another_result_is_another_table(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "spark_export.json"
    found = json.loads(file.read_text())
    found[0] |= {"records_per_s": 123_456_789, "met": False}
    file.write_text(json.dumps(found))
    page = rewritten((DOCS / "export.md").read_text(), tmp_path)
    assert "123,456,789" in page and "missed" in page
