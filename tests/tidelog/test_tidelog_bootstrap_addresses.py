"""Where a client looks for its cluster: what is no address is said, and never reaches a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from common.settings import SettingError
from tidelog.admin.bootstrap_addresses import parse_bootstrap
from tidelog.command_line import application


def test_names_and_addresses() -> None:
    text = "a.test:9092, 127.0.0.1:1,[::1]:65535,[fe80::1%eth0]:7,bücher.test:9,a.test.:9,,"
    assert parse_bootstrap(text) == [
        ("a.test", 9_092),
        ("127.0.0.1", 1),
        ("::1", 65_535),
        ("fe80::1%eth0", 7),
        ("bücher.test", 9),
        ("a.test.", 9),
    ]


WRONG = [
    ("[::1:9092", "[::1 is no address of IPv6"),
    ("::1]:9092", "::1] is no address of IPv6"),
    ("[a.test]:9092", "no address of IPv6"),
    ("[]:9092", "no address of IPv6"),
    ("[[::1]]:9092", "no address of IPv6"),
    (f"{'a' * 64}.x:9092", "is no host name"),
    (f"x.{'ü' * 70}:9092", "is no host name"),
    ("a..b:9092", "is no host name"),
    (".a:9092", "is no host name"),
    (f"a:{'9' * 5_000}", "is not HOST:PORT"),
    ("a:65536", "is not HOST:PORT"),
    ("a:0", "is not HOST:PORT"),
]


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_no_address_is_bad_usage(text: str, said: str) -> None:
    done = CliRunner().invoke(application("topics"), ["topics", "list", "--bootstrap", f"127.0.0.1:1,{text}"])
    assert done.exit_code == 2 and done.output.startswith("tidelog: --bootstrap: ") and said in done.output


@given(st.text(st.sampled_from("a.[]:%1\u00fc\u3002\ud800-\0 ")).map(lambda host: f"{host}:9092"))
def test_any_text_is_addresses_or_bad_usage(text: str) -> None:
    try:
        found = parse_bootstrap(text)
    except SettingError:
        return
    for host, _ in found:
        host.encode("idna")
