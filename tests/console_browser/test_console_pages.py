"""Every page: it loads, runs no foreign script, is usable on a telephone, and axe finds nothing serious."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.console_program import ConsoleProgram

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
FOUND = "axe.run().then(found => found.violations.map(one => [one.impact, one.id, one.nodes[0].html]))"
PAGES = ["/", "/topics", "/new-topic", "/topics/flown", "/topics/flown/records", "/topics/flown/produce",
         "/topics/flown/delete", "/groups", "/transactions", "/tenants", "/cells", "/balance", "/balance/history",
         "/tier", "/acls", "/acls/users", "/audit", "/settings", "/settings?kind=broker&of=0",
         "/settings?kind=topic&of=flown", "/settings/one?kind=topic&of=flown&setting=retention.ms"]  # fmt: skip
DARK = ["/", "/topics/flown/records", "/settings"]


@pytest.fixture(scope="module", autouse=True)
def _topic(cluster: Any) -> None:
    cluster.command_of("topics", "create", "flown", "--partitions", "3")


def serious(page: Any) -> list[Any]:
    """What people with other senses, hands or devices could not use. The script goes past the page's own policy."""
    page.evaluate(AXE)
    return [one for one in page.evaluate(FOUND) if one[0] in ("serious", "critical", "moderate")]


@pytest.mark.parametrize("path", PAGES)
def test_a_page(page: Any, console: ConsoleProgram, path: str) -> None:
    answer = page.goto(console.address + path)
    assert answer.status == 200
    page.wait_for_load_state("networkidle")
    assert page.locator("h1").count() == 1
    assert page.locator(".trouble").count() == 0
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 361, "nothing is cut off on a telephone"
    assert serious(page) == []


@pytest.mark.parametrize("path", DARK)
def test_a_page_in_the_dark(page: Any, console: ConsoleProgram, path: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(console.address + path)
    page.wait_for_load_state("networkidle")
    assert serious(page) == []


def test_the_login_page(stranger: Any, console: ConsoleProgram) -> None:
    stranger.goto(console.address + "/topics")
    assert "/login" in stranger.url
    assert "asks for no login" in stranger.locator("main").inner_text()
    assert serious(stranger) == []


def test_the_keyboard_reaches_the_page(page: Any, console: ConsoleProgram) -> None:
    page.goto(console.address + "/topics")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "q"


def test_the_menu_of_a_telephone(page: Any, console: ConsoleProgram) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(console.address + "/topics")
    assert not page.get_by_role("link", name="Groups").is_visible()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Groups").click()
    page.wait_for_url("**/groups")


def test_a_chart_of_one_sample_spans_minutes(page: Any, console: ConsoleProgram) -> None:
    page.goto(console.address + "/")
    page.wait_for_selector("#throughput-chart canvas")
    scale = "document.getElementById('throughput-chart').plot.scales.x"
    assert page.evaluate(f"{scale}.max - {scale}.min") < 600
