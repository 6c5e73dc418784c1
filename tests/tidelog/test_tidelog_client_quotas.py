"""`tidelog quotas list | describe | alter | delete`: what is said before a cluster is asked."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from kraft.image.client_quotas import QUOTAS_OF_ADDRESSES, QUOTAS_OF_CLIENTS
from tidelog.admin.client_quota_admin import entity_text, plain
from tidelog.command_line import application
from tidelog.commands.client_quotas import UNITS, EntityOptions, parse_quotas

ALICE = ["--user", "alice"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["describe"], "--user, --client-id, --ip"),
        (["alter", "producer_byte_rate=1"], "--user, --client-id, --ip"),
        (["delete", "--tenant", "demo"], "--user, --client-id, --ip"),
        (["alter", *ALICE, "producer_byte_rate"], "'producer_byte_rate': it must be NAME=VALUE"),
        (["alter", *ALICE], "NAME=VALUE"),
        (["alter", *ALICE, "x=1"], "x: there is no such quota; users and client ids have producer_byte_rate, "),
        (["alter", *ALICE, "connection_creation_rate=1"], "connection_creation_rate: there is no such quota"),
        (["delete", *ALICE, "x"], "x: there is no such quota"),
        (["alter", "--ip-default", "producer_byte_rate=1"], "addresses have connection_creation_rate"),
        (["alter", *ALICE, "producer_byte_rate=1", "producer_byte_rate=2"], "producer_byte_rate: it is given twice"),
        (["alter", *ALICE, "--user-default", "producer_byte_rate=1"], "--user or --user-default, not both"),
        (["describe", "--client-id", ""], "--client-id: it must not be empty"),
        (["list", "--ip", "10.0.0.1", *ALICE], "--ip cannot go with --user and --client-id"),
        (["list", "--ip-default", "--tenant", "demo"], "--ip cannot go with --tenant"),
        (["describe", "--ip", "localhost"], "--ip 'localhost': it must be an IPv4 or IPv6 address"),
    ],
)
def test_wrong_words_end_with_2_and_are_named(words: list[str], named: str) -> None:
    done = CliRunner().invoke(application(), ["quotas", *words])
    assert done.exit_code == 2
    assert named in done.stderr


@pytest.mark.parametrize(
    ("text", "quota_range"),
    [
        *[
            (f"producer_byte_rate={value}", "a whole number from 1 to 9223372036854775807")
            for value in ("0", "-1", "1.5", "1MB", "", "9223372036854775808", "1" * 5_000)
        ],
        *[
            (f"request_percentage={value}", "a finite number above 0")
            for value in ("0", "0.0", "0e5", "-1", "nan", "inf", "5%", "1e", "1e400", "1e-400", "9" * 400)
        ],
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(
    text: str, quota_range: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        parse_quotas([text], {"user": "alice"})
    assert f"{text}: it must be {quota_range}" in capsys.readouterr().err


def test_connections_of_an_address_end_at_javas_int(capsys: pytest.CaptureFixture[str]) -> None:
    name = "connection_creation_rate"
    assert parse_quotas([f"{name}=2147483647"], {"ip": None}) == {name: 2147483647.0}
    with pytest.raises(typer.Exit):
        parse_quotas([f"{name}=2147483648"], {"ip": None})
    assert "from 1 to 2147483647" in capsys.readouterr().err


def test_values_are_read_and_shown_without_needless_points() -> None:
    texts = ["producer_byte_rate=9223372036854775807", "request_percentage=12.5", "controller_mutation_rate=2"]
    found = parse_quotas(texts, {"user": None})
    assert found == {
        "producer_byte_rate": 9223372036854775807.0, "request_percentage": 12.5, "controller_mutation_rate": 2.0
    }  # fmt: skip
    assert [str(plain(value)) for value in found.values()] == ["9223372036854775808", "12.5", "2"]


@pytest.mark.parametrize("value", [1e-5, 1e300, 5e-324, 0.5])
def test_a_value_is_read_as_it_is_shown(value: float) -> None:
    assert parse_quotas([f"request_percentage={plain(value)}"], {"user": None}) == {"request_percentage": value}


def test_every_quota_has_a_unit() -> None:
    assert set(UNITS) == {*QUOTAS_OF_CLIENTS, *QUOTAS_OF_ADDRESSES}


def test_an_entity_is_named_by_its_parts() -> None:
    assert EntityOptions(user="alice", client_id_default=True).entity() == {"user": "alice", "client-id": None}
    assert EntityOptions(ip="::1").entity() == {"ip": "::1"}
    assert EntityOptions().names() == {}
    assert entity_text({"user": "alice", "client-id": None}) == "user=alice client-id=<default>"
