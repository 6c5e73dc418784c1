"""Credentials, sessions and attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings import SettingError, read_properties
from console.access.answers import Answers
from console.access.caller import OF_AN_OWNER_MAX as QUESTIONS_MAX
from console.access.caller import Places
from console.access.commands import secret_file
from console.login.attempts import OF_A_USER, OF_AN_ADDRESS, Attempts
from console.login.credentials import Entry, Reachable, entry_of
from console.login.sessions import IDLE_S, OF_AN_OWNER_MAX, YIELDS_S, Full, Sessions
from tidelog.admin.command_config import ClientSecurity, parse_command_config

WHERE = Reachable("b0:9092", {"security.protocol": "SASL_PLAINTEXT"}, "cloud.example:10092")
PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=30)


@given(PRINTABLE, PRINTABLE, st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]))
def test_commands_log_in_as_the_session_does(user: str, secret: str, mechanism: str) -> None:
    entry = entry_of({"way": mechanism, "user": user, "password": secret}, WHERE)
    text = "".join(f"{name}={value}\n" for name, value in entry.properties.items())
    again = parse_command_config(read_properties(text))
    assert again.login == entry.security.login
    assert again.protocol == entry.security.protocol


def test_a_tenant_is_led_to_its_own_name_over_tls() -> None:
    entry = entry_of({"way": "SCRAM-SHA-256", "user": "TK1", "password": "s", "tenant": "lkc-a1"}, WHERE)
    assert entry.bootstrap == "lkc-a1.cloud.example:10092"
    assert entry.security.protocol == "SASL_SSL"
    assert entry.security.context is not None


@pytest.mark.parametrize("tenant", ["evil.example:1/", "a b", "..", "x" * 70, "lkc-a1.other", "LKC"])
def test_no_other_address_gets_through_a_tenants_id(tenant: str) -> None:
    with pytest.raises(SettingError):
        entry_of({"way": "PLAIN", "user": "u", "password": "p", "tenant": tenant}, WHERE)


@pytest.mark.parametrize(
    "fields",
    [
        {"way": "GSSAPI"},
        {"way": "PLAIN", "user": "u"},
        {"way": "PLAIN", "user": "u", "password": "a\nsecurity.protocol=PLAINTEXT"},
        {"way": "OAUTHBEARER", "token": "a b"},
        {"way": "CERTIFICATE", "chain": "x", "key": "y"},
        {},
    ],
)
def test_what_is_no_login(fields: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        entry_of(fields, WHERE)


def test_a_file_of_secrets_is_in_no_directory_and_gone_afterwards() -> None:
    with secret_file("user=x\n") as descriptor, open(f"/proc/self/fd/{descriptor}") as file:
        assert file.read() == "user=x\n"
    with pytest.raises(OSError, match="descriptor"):
        secret_again(descriptor)


def secret_again(descriptor: int) -> None:
    import os  # noqa: PLC0415

    os.fstat(descriptor)


class Closed:
    def __init__(self) -> None:
        self.count = 0
        self.answers = Answers(lambda: 0.0)

    def close(self) -> None:
        self.count += 1


def sessions(most: int = 2) -> tuple[Sessions, list[float], Any]:
    now, words = [0.0], iter(range(1_000))
    return Sessions(lambda: now[0], lambda: f"word{next(words)}", most), now, Closed()


ENTRY = Entry("b", ClientSecurity(), "ann", {})


def test_sessions_are_bounded_and_end_when_they_rest() -> None:
    table, now, caller = sessions()
    cookie, session = table.begin(ENTRY, caller)
    table.begin(ENTRY, caller)
    with pytest.raises(Full):
        table.begin(ENTRY, caller)
    assert table.of(cookie, is_use=True) is session
    now[0] = IDLE_S - 1
    assert table.of(cookie) is session  # a poll is no use
    now[0] = IDLE_S + 1
    assert table.of(cookie) is None
    assert caller.count == 1
    table.begin(ENTRY, caller)  # the others have ended, too
    assert len(table) == 1


def test_a_session_that_is_used_ends_with_its_age() -> None:
    table, now, caller = sessions()
    cookie, _ = table.begin(ENTRY, caller)
    while table.of(cookie, is_use=True) is not None:
        now[0] += IDLE_S / 2
        assert now[0] < 24 * 3600
    assert caller.count == 1


def test_attempts_come_back_with_time_and_each_address_has_its_own() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    assert [attempts.wait_s("a", "") for _ in range(OF_AN_ADDRESS)] == [0.0] * OF_AN_ADDRESS
    assert attempts.wait_s("a", "") > 0
    assert attempts.wait_s("b", "") == 0
    now[0] = 10.0
    assert attempts.wait_s("a", "") == 0


def test_a_user_is_not_guessed_from_many_addresses() -> None:
    attempts = Attempts(lambda: 0.0)
    waits = [attempts.wait_s(f"10.0.0.{number}", "ann") for number in range(OF_A_USER + 2)]
    assert waits[:OF_A_USER] == [0.0] * OF_A_USER
    assert min(waits[OF_A_USER:]) > 0
    assert attempts.wait_s("10.0.1.1", "ben") == 0


def test_all_addresses_of_a_network_of_ipv6_count_as_one() -> None:
    attempts = Attempts(lambda: 0.0)
    assert not any(attempts.wait_s(f"2001:db8::{number:x}", "") for number in range(OF_AN_ADDRESS))
    assert attempts.wait_s("2001:db8::ffff", "") > 0
    assert attempts.wait_s("2001:db8:1::1", "") == 0
    assert attempts.wait_s("::ffff:10.0.0.1", "") == 0


def test_an_owner_has_its_part_of_sessions_and_of_threads() -> None:
    table, now, caller = sessions(64)
    entry = ENTRY._replace(owner="user ann")
    cookies = []
    for at in range(OF_AN_OWNER_MAX + 3):
        now[0] = float(at)
        cookies.append(table.begin(entry, caller)[0])
    assert len(table) == OF_AN_OWNER_MAX
    assert [table.of(one) is None for one in cookies] == [True] * 3 + [False] * OF_AN_OWNER_MAX
    places = Places()
    mine = places.of("user ann")
    assert places.of("user ann") is mine
    assert places.of("user ben") is not mine
    assert places.of("") is not places.of("")

    async def all_taken() -> bool:
        for _ in range(QUESTIONS_MAX):
            assert not mine.locked()
            await mine.acquire()
        return mine.locked()

    assert asyncio.run(all_taken())


def test_a_session_that_rests_makes_room() -> None:
    table, now, caller = sessions()
    resting, _ = table.begin(ENTRY, caller)
    busy, _ = table.begin(ENTRY, caller)
    now[0] = YIELDS_S
    table.of(busy, is_use=True)
    table.begin(ENTRY, caller)
    assert table.of(resting) is None
    assert table.of(busy) is not None


def test_the_upkeep_drops_old_answers_of_open_sessions() -> None:
    async def ask() -> int:
        return 1

    async def run() -> int:
        table, _, caller = sessions()
        table.begin(ENTRY, caller)
        await caller.answers.get("k", 0.0, ask)
        assert len(caller.answers) == 1
        table.drop_old_answers()
        return len(caller.answers)

    assert asyncio.run(run()) == 0
