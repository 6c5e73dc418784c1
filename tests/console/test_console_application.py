"""The console as a browser meets it: who gets in, what is refused, and that all that is shown is escaped."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from console.application import STATIC
from console.page_list import ACTS, PAGES
from console.web.static_files import StaticFolder
from console.web.visit import FIELDS_MAX, FORM_BYTES_MAX
from records.builder import build_batch
from records.record import Record
from tests.console.fake_cluster import (
    WRONG,
    FakeClient,
    FakeDoor,
    door_of,
    fetched,
    log_in,
    metadata,
    offsets,
    token_of,
    visitor,
)
from wire.messages import DeleteTopicsResponse

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
COOKIE, DOMAIN = "tidelog-console-8080", "localhost.local"


def path_of(path: str) -> str:
    return path.replace("{topic}", "t")


def test_nothing_is_shown_without_a_session() -> None:
    browser = visitor(FakeClient())
    for page in PAGES:
        answer = browser.get(path_of(page.path))
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login")
    for act in ACTS:
        assert browser.post(path_of(act.path), data={"csrf": "x"}).status_code == 303


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_do_not_get() -> None:
    client = FakeClient()
    door = FakeDoor(client)
    with visitor(client, door) as browser:
        answer = log_in(browser, next="/topics?q=a")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/topics?q=a"
        cookie = next(one for one in answer.headers.get_list("set-cookie") if one.startswith(COOKIE + "="))
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert door.entries[0].name == "ann"
        assert "ann" in browser.get("/topics").text
        browser.post("/logout", data={"token": token_of(browser)})
        assert browser.get("/topics").status_code == 303
    assert client.is_closed


def test_over_tls_cookies_are_bound_to_the_host() -> None:
    browser = visitor(FakeClient(), certificate="c.pem")
    answer = browser.get("/login")
    assert answer.headers["strict-transport-security"]
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"__Host-{COOKIE}-door=")
    assert "; Secure" in cookie
    assert "Path=/;" in cookie


def test_a_new_login_ends_the_session_before_it() -> None:
    first, second = FakeClient(), FakeClient()
    door = FakeDoor(first)
    with visitor(first, door) as browser:
        browser.cookies.set(COOKIE, "chosen by another", domain=DOMAIN)
        word = door_of(browser)
        log_in(browser, door=word)
        old = browser.cookies[COOKIE]
        assert old != "chosen by another"
        door.client = second
        browser.cookies.set(COOKIE + "-door", word, domain=DOMAIN)
        answer = browser.post("/login", data={"way": "PLAIN", "user": "ann", "password": "p", "door": word})
        assert answer.status_code == 303
        assert browser.cookies[COOKIE] != old
    assert first.is_closed


def test_no_one_else_logs_a_person_out() -> None:
    with visitor(FakeClient()) as browser:
        log_in(browser)
        assert browser.post("/logout", data={"token": "x"}).headers["location"] == "/"
        assert browser.get("/topics").status_code == 200


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/login"])
def test_a_login_leads_nowhere_else(to: str) -> None:
    assert log_in(visitor(FakeClient()), next=to).headers["location"] == "/"


def test_no_link_leads_elsewhere() -> None:
    with visitor(FakeClient()) as browser:
        log_in(browser)
        assert 'href="//' not in browser.get("http://localhost//evil.example/x").text


def test_wrong_passwords_are_said_and_limited() -> None:
    browser = visitor(FakeClient(), now=lambda: 0.0)
    codes = [log_in(browser, password=WRONG).status_code for _ in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert log_in(browser).status_code == 429


def test_a_login_that_is_late_gives_its_connections_back_in_a_thread() -> None:
    class SlowDoor(FakeDoor):
        def enter(self, entry: Any) -> Any:
            assert may_end.wait(30)
            return super().enter(entry)

    class Client(FakeClient):
        def close(self) -> None:
            closed_in.append(threading.current_thread().name)
            closed.set()

    may_end, closed, closed_in = threading.Event(), threading.Event(), list[str]()
    with visitor(FakeClient(), SlowDoor(Client()), login_s=0.01) as browser:
        answer = log_in(browser)
        assert (answer.status_code, "have not answered within" in answer.text) == (401, True)
        may_end.set()
        assert closed.wait(30)
    assert closed_in[0].startswith("console-login")


def test_a_login_from_elsewhere_is_refused() -> None:
    browser = visitor(FakeClient())
    given = {"way": "PLAIN", "user": "u", "password": "p"}
    assert browser.post("/login", data=given).status_code == 403
    assert browser.post("/login", data=given, headers={"origin": "http://evil.example"}).status_code == 403
    assert browser.post("/login", data=given, headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_every_answer_binds_the_browser() -> None:
    browser = visitor(FakeClient())
    for path in ("/login", StaticFolder(STATIC).address_of("console.css"), "/nothing"):
        policy = browser.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    assert browser.get("/login").headers["cache-control"] == "no-store"


def test_pages_name_their_files_by_content_and_browsers_keep_these() -> None:
    browser, folder = visitor(FakeClient()), StaticFolder(STATIC)
    named = re.findall(r'(?:src|href)="(/static/[^"]*)"', browser.get("/login").text)
    assert set(named) == {folder.address_of(name) for name in folder.names if name.endswith((".js", ".css", ".svg"))}
    for address in named:
        answer = browser.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.content == (STATIC / address.split("/", 3)[3]).read_bytes()


@pytest.mark.parametrize("path", ["/static/console.js", "/static/0123456789abcdef/console.js", "/static/0/../guard.py",
                                  "/static//console.js", "/static/0123456789abcdef/"])  # fmt: skip
def test_no_address_shows_another_content_than_it_names(path: str) -> None:
    answer = visitor(FakeClient()).get(path)
    assert answer.status_code in (307, 404), "307: to the login, as every path that is none"
    assert answer.headers["cache-control"] == "no-store"


def test_a_file_that_changes_gets_another_address(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    before = StaticFolder(tmp_path).address_of("a.js")
    assert StaticFolder(tmp_path).address_of("a.js") == before
    (tmp_path / "a.js").write_text("2")
    assert StaticFolder(tmp_path).address_of("a.js") != before


@pytest.mark.parametrize(
    "host", ["evil.example", "[x", "", "localhost.evil.example:8080", "[::1", "a]b", "127.0.0.1.x"]
)
def test_the_names_of_others_are_refused(host: str) -> None:
    """A page whose name leads here cannot read what the console says."""
    assert visitor(FakeClient()).get("/login", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "192.0.2.7:8080", "LOCALHOST"])
def test_addresses_and_own_names_are_taken(host: str) -> None:
    assert visitor(FakeClient()).get("/login", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://[x", "null", "http://evil.example", "http://localhost:81", ""])
def test_a_form_of_another_origin_is_refused(origin: str) -> None:
    assert visitor(FakeClient()).post("/login", data={}, headers={"origin": origin}).status_code == 403


def test_no_page_has_scripts_or_styles_in_it() -> None:
    for template in (STATIC.parent / "templates").iterdir():
        text = template.read_text()
        assert " style=" not in text, template.name
        assert "<style" not in text, template.name
        assert not [line for line in text.splitlines() if "<script" in line and " src=" not in line], template.name
        assert not [word for word in ("onclick", "onload", "hx-on", "js:", "|safe") if word in text], template.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.path))
def test_each_page_says_that_the_brokers_are_gone(page: Any) -> None:
    with visitor(FakeClient()) as browser:
        log_in(browser)
        answer = browser.get(path_of(page.path) + "?name=n&kind=topic&of=t&setting=s")
        assert answer.status_code in (200, 409)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: str(act.path))
def test_each_act_needs_the_token_of_its_session(act: Any) -> None:
    client = FakeClient()
    with visitor(client) as browser:
        log_in(browser)
        client.sent.clear()
        assert browser.post(path_of(act.path), data={"csrf": "x"}).status_code == 403
        assert not client.sent


@pytest.mark.parametrize("act", [act for act in ACTS if act.changes], ids=lambda act: str(act.path))
def test_no_change_is_made_with_read_only(act: Any) -> None:
    client = FakeClient()
    with visitor(client, read_only=True) as browser:
        log_in(browser)
        token = token_of(browser)
        client.sent.clear()
        answer = browser.post(path_of(act.path), data={"csrf": token})
        assert answer.status_code == 403
        assert "--read-only" in answer.text
        assert not client.sent


def test_a_hostile_name_is_text() -> None:
    with visitor(FakeClient({"MetadataRequest": metadata(HOSTILE, "plain")})) as browser:
        log_in(browser, user=HOSTILE)
        page = browser.get("/topics?q=" + HOSTILE.replace("<", "%3C")).text
        assert "&lt;script&gt;" in page
        assert "<script>alert" not in page
        assert "<img" not in page


def test_a_hostile_record_is_text() -> None:
    batch = bytes(build_batch([Record(0, 5, HOSTILE.encode(), HOSTILE.encode(), ((HOSTILE, HOSTILE.encode()),))]))
    answers = {
        "MetadataRequest": metadata("t"),
        "ListOffsetsRequest": offsets(0, 1),
        "FetchRequest": fetched([batch], stable=1),
    }
    with visitor(FakeClient(answers)) as browser:
        log_in(browser)
        found = browser.post("/topics/t/records", data={"csrf": token_of(browser), "from": "begin"}).text
    assert found.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert "<script" not in found
    assert "<img" not in found


@pytest.mark.parametrize(
    "cursor",
    ["x", '{"at":{"0":5},"ends":{}}', '{"at":{"0":-1},"ends":{"0":5}}', '{"at":{"-1":0},"ends":{"-1":5}}',
     '{"at":{"0":9999999999999999999},"ends":{"0":5}}', '{"at":{"2147483648":0},"ends":{"2147483648":5}}', "[" * 9_999,
     '{"at":{"0":0},"ends":{"0":1},"found":-9}', '{"at":{"0":0},"ends":{"0":1},"looked_at":-9}'],
)  # fmt: skip
@pytest.mark.parametrize("way", ["records", "tail"])
def test_a_search_goes_on_from_its_own_places_alone(way: str, cursor: str) -> None:
    answers = {"MetadataRequest": metadata("t"), "ListOffsetsRequest": offsets(0, 1)}
    with visitor(FakeClient(answers)) as browser:
        log_in(browser)
        found = browser.post(f"/topics/t/{way}", data={"csrf": token_of(browser), "cursor": cursor})
    assert "begin it again" in found.text


def test_a_topic_is_deleted_only_with_its_name_written() -> None:
    row = DeleteTopicsResponse.DeletableTopicResult(name="t", topic_id=None, error_code=0, error_message=None)
    client = FakeClient({"DeleteTopicsRequest": lambda _: DeleteTopicsResponse(responses=[row])})
    with visitor(client) as browser:
        log_in(browser)
        token = token_of(browser)
        client.sent.clear()
        answer = browser.post("/topics/t/delete", data={"csrf": token, "typed": "T"}, headers={"hx-request": "true"})
        assert "write its name: t" in answer.text
        assert not client.sent
        answer = browser.post("/topics/t/delete", data={"csrf": token, "typed": "t"}, headers={"hx-request": "true"})
        assert answer.headers["hx-redirect"] == "/topics"
        assert len(client.sent) == 1
        assert "topic t was deleted" in browser.get("/topics").text


@pytest.mark.parametrize("word", ["a\0", "x" * 300_000])
def test_what_is_no_word_of_a_command_is_refused_in_its_place(word: str) -> None:
    with visitor(FakeClient()) as browser:
        log_in(browser)
        given = {"csrf": token_of(browser), "topic": word}
        answer = browser.post("/tier/check", data=given, headers={"hx-request": "true"})
        assert (answer.status_code, "no name is so long" in answer.text) == (200, True)


def test_a_failure_of_the_console_is_said_in_its_place() -> None:
    def failing(_: Any) -> Any:
        raise AssertionError

    with visitor(FakeClient({"MetadataRequest": failing}), raises=False) as browser:
        log_in(browser)
        assert browser.get("/topics").status_code == 500
        answer = browser.get("/topics", headers={"hx-request": "true"})
        assert (answer.status_code, "its log says how" in answer.text) == (200, True)
        assert "<html" not in answer.text


def test_a_form_that_is_too_large_is_refused() -> None:
    with visitor(FakeClient()) as browser:
        log_in(browser)
        answer = browser.post("/new-topic", data={"csrf": "x", "settings": "a" * (3 << 20)})
        assert "at most" in answer.text


@pytest.mark.parametrize("body", [b"user=\xff", b"a=1&" * (FIELDS_MAX + 1), b"a" * (FORM_BYTES_MAX + 1)])
def test_a_login_that_cannot_be_read_is_answered_with_the_reason(body: bytes) -> None:
    with visitor(FakeClient()) as browser:
        answer = browser.post("/login", content=body, headers={"origin": "http://localhost"})
        assert answer.status_code == 400
        assert "form cannot be read" in answer.text or "at most" in answer.text
        assert log_in(browser).status_code == 303


def test_panels_of_a_session_ask_once() -> None:
    client = FakeClient({"MetadataRequest": metadata("t")})
    with visitor(client) as browser:
        log_in(browser)
        for _ in range(5):
            assert browser.get("/topics").status_code == 200
        assert Counter(type(one).__name__ for one in client.sent) == {
            "MetadataRequest": 1,
            "ListPartitionReassignmentsRequest": 1,
        }


def test_what_others_wrote_is_what_it_says() -> None:
    vendor = STATIC / "vendor"
    listed = json.loads((vendor / "VERSIONS.json").read_text())
    assert {path.name for path in vendor.iterdir() if path.suffix in (".js", ".css")} == set(listed)
    for name, of in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == of["sha256"]
        assert (vendor / of["licence"]).is_file()
