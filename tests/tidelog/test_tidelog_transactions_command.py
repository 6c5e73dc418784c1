"""What `tidelog transactions` prints: names that clients choose, and output for programs."""

from __future__ import annotations

import json
from typing import cast

import pytest
import typer

from tests.tidelog.transaction_world import PLACES, Transaction, World
from tidelog.admin.library_client import AdminClient
from tidelog.admin.open_transactions import examined
from tidelog.commands.transactions import abort_known, show_aborted, show_open
from tidelog.tier.access import blocked_bytes

NAME = "a\x1b[31m\nb"
SHOWN = r"a\x1b[31m\nb"


@pytest.fixture
def client() -> AdminClient:
    """Of a cluster with one open transaction, whose brokers do not say to this user what the tier lacks."""
    world = World()
    world.transactions[NAME] = Transaction(9, state="Ongoing", partitions={PLACES[0]})
    world.opened[PLACES[0], 9] = (0, 0)
    return cast("AdminClient", world)


def aborted(client: AdminClient, *, dry_run: bool, as_json: bool) -> None:
    show_aborted(abort_known(client, NAME, dry_run=dry_run), dry_run=dry_run, as_json=as_json)


def test_an_abort_says_what_it_did_on_one_line(client: AdminClient, capsys: pytest.CaptureFixture[str]) -> None:
    aborted(client, dry_run=True, as_json=False)
    aborted(client, dry_run=False, as_json=False)
    assert capsys.readouterr().out == (
        f"would abort {SHOWN}, which broker 1 coordinates\naborted {SHOWN}, which broker 1 coordinates\n"
    )
    with pytest.raises(typer.Exit):
        aborted(client, dry_run=False, as_json=False)
    assert capsys.readouterr().err == f"tidelog: {SHOWN} has no transaction to abort, its state is PrepareAbort\n"


def test_a_program_is_not_told_that_a_dry_run_aborted_anything(
    client: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted(client, dry_run=True, as_json=True)
    aborted(client, dry_run=False, as_json=True)
    what = f"{NAME}, which broker 1 coordinates"
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"would_abort": what, "dry_run": True},
        {"aborted": what, "dry_run": False},
    ]


def test_the_doctor_names_the_clients_that_coordinators_know(
    client: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    world = cast("World", client)
    found = examined(client, None, dict)
    show_open(found, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["client_id"], row["client_host"]) == (None, None), "not told to this user"
    world.clients = {NAME: ("orders\x1b[0m", "10.0.0.7"), "other": ("x", "y")}
    found = examined(client, None, dict)
    show_open(found, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["client_id"], row["client_host"]) == ("orders\x1b[0m", "10.0.0.7")
    show_open(found, as_json=False)
    assert r"orders\x1b[0m" in capsys.readouterr().out


def test_the_doctor_shows_rows_to_who_may_not_ask_about_the_tier(
    client: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examined(client, None, lambda: blocked_bytes(client))
    show_open(found, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["transactional_id"], row["class"], row["tier_bytes"]) == (NAME, "young", None)
    show_open(found, as_json=False)
    said = capsys.readouterr()
    assert said.out.splitlines()[1].endswith(" -") and SHOWN in said.out
    assert said.err.startswith("tidelog: tier bytes are not known: no broker reports its tier: CLUSTER_AUTHORIZATION")
