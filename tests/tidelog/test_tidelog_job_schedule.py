"""When Spark jobs are due, and that the scheduler runs them one at a time, as long as it may."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from common.machine import MachineClock
from common.settings import SettingError
from tidelog.configuration.job_schedule import Cron, Entry, Every, ScheduleError, parse_schedule
from tidelog.configuration.node_config import node_values
from tidelog.configuration.settings_check import check_settings
from tidelog.nodes.job_scheduler import JobScheduler


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("when", "moment", "due"),
    [
        ("every 6h", "2026-03-01T05:59:59", "2026-03-01T06:00:00"),
        ("every 6h", "2026-03-01T06:00:00", "2026-03-01T12:00:00"),
        ("every 90 s", "2026-03-01T00:00:00", "2026-03-01T00:01:30"),
        ("* * * * *", "2026-03-01T00:00:00", "2026-03-01T00:01:00"),
        ("30 3 * * *", "2026-03-01T03:30:00", "2026-03-02T03:30:00"),
        ("*/20 4-6/2 * * *", "2026-03-01T04:45:00", "2026-03-01T06:00:00"),
        ("0 0 29 2 *", "2026-03-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 12 * * 1-5", "2026-03-06T12:00:00", "2026-03-09T12:00:00"),  # Friday to Monday
        ("0 12 * * 7", "2026-03-06T12:00:00", "2026-03-08T12:00:00"),
        ("0 0 13 * 5", "2026-03-01T00:00:00", "2026-03-06T00:00:00"),  # either day is enough
        ("5/25 1 * 12 *", "2026-03-01T00:00:00", "2026-12-01T01:05:00"),
    ],
)
def test_the_next_moment(when: str, moment: str, due: str) -> None:
    (entry,) = parse_schedule(f"{when}: verify")
    assert entry.when.after(seconds(moment)) == seconds(due)


def test_entries_have_words_as_a_shell_reads_them() -> None:
    entries = parse_schedule(" every 1h: compact --topic 'a b' ; ;0 3 * * *: verify --deep;")
    assert [entry.words for entry in entries] == [("compact", "--topic", "a b"), ("verify", "--deep")]
    assert isinstance(entries[0].when, Every)
    assert isinstance(entries[1].when, Cron)
    assert parse_schedule("") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("every 6h", "WHEN: JOB"),
        ("every 6h:", "WHEN: JOB"),
        ("every 0s: verify", "at least a second"),
        ("every 6 weeks: verify", "five fields"),
        ("every 6h: erase --topic t --key-file f", "compact, verify"),
        ("every 6h: rm -rf /", "compact, verify"),
        ("60 * * * *: verify", "from 0 to 59"),
        ("* * 0 * *: verify", "day of month"),
        ("*/0 * * * *: verify", "minute"),
        ("0 0 30 2 *: verify", "never comes"),
        ("mon * * * *: verify", "minute"),
        ("every 1h: verify 'x", "quot"),
    ],
)
def test_what_is_no_schedule_is_told(text: str, told: str) -> None:
    with pytest.raises(ScheduleError, match=told):
        parse_schedule(text)
    with pytest.raises(SettingError, match=r"tidelog\.spark\.schedule"):
        check_settings({"tidelog.spark.schedule": text, "tidelog.tier.uri": "file:///tmp/tier"})


def test_a_schedule_needs_a_tier() -> None:
    given = {"node.id": "0", "tidelog.spark.schedule": "every 1h: verify"}
    with pytest.raises(SettingError, match=r"without tidelog\.tier\.uri"):
        node_values(given, "controller")


class Ground:
    """A scheduler whose jobs are small scripts that write to `file`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "said"
        self.file.touch()
        self.active = True
        self.options: list[str] | None = ["--tier", "file:///t"]

    def scheduler(self, script: str, entries: list[Entry]) -> JobScheduler:
        line = [sys.executable, "-c", f"import os, sys, time\nfile = {str(self.file)!r}\n{script}"]
        return JobScheduler(entries, lambda: self.options, lambda: self.active, MachineClock(), line, look_s=0.02)

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  of files and processes
                await asyncio.sleep(0.02)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def entry(name: str = "verify") -> Entry:
    return Entry(name, Every(1), (name, "--deep"))


SAYING = "open(file, 'a').write(' '.join(sys.argv[1:]) + '\\n')"
ONE_AT_A_TIME = """
with open(file, 'a') as out: out.write('begin\\n')
time.sleep(0.3)
with open(file, 'a') as out: out.write('end\\n')
"""


async def test_due_jobs_run_with_the_place_of_the_tier(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scheduler = ground.scheduler(SAYING, [entry()])
    ground.options = None
    scheduler.start()
    await asyncio.sleep(1.2)
    assert not ground.lines  # where the tier is, is not known yet
    ground.options = ["--tier", "file:///t"]
    await ground.until(lambda: scheduler.ended >= 2)
    await scheduler.stop()
    assert set(ground.lines) == {"verify --tier file:///t --deep"}
    assert scheduler.failed == 0
    ended = [record for record in caplog.records if "ended" in record.getMessage()]
    assert vars(ended[0])["exit"] == 0


async def test_one_runs_at_a_time(ground: Ground) -> None:
    scheduler = ground.scheduler(ONE_AT_A_TIME, [entry("verify"), entry("compact")])
    scheduler.start()
    await ground.until(lambda: scheduler.ended >= 4)
    await scheduler.stop()
    assert ground.lines[:8] == ["begin", "end"] * 4


async def test_a_failure_is_logged_with_its_exit_code_and_last_words(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = ground.scheduler("print('x' * 100_000)\nprint('no such topic')\nsys.exit(3)", [entry()])
    scheduler.start()
    await ground.until(lambda: scheduler.failed)
    await scheduler.stop()
    (record,) = [record for record in caplog.records if "failed" in record.getMessage()][:1]
    assert vars(record)["exit"] == 3
    assert "no such topic" in vars(record)["said"]
    assert len(vars(record)["said"]) < 50_000


async def test_without_leadership_nothing_runs_and_what_runs_is_ended(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    script = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    script += "open(file, 'a').write(f'{os.getpid()} {child.pid}\\n')\ntime.sleep(600)"
    scheduler = ground.scheduler(script, [entry()])
    ground.active = False
    scheduler.start()
    await asyncio.sleep(1.2)
    assert not ground.lines
    ground.active = True
    await ground.until(lambda: ground.lines)
    ground.active = False
    await ground.until(lambda: scheduler.ended == 1)
    for pid in map(int, ground.lines[0].split()):
        await ground.until(lambda pid=pid: not is_running(pid))
    assert any("another controller" in record.getMessage() for record in caplog.records)
    await scheduler.stop()


async def test_stopping_ends_the_job(ground: Ground) -> None:
    scheduler = ground.scheduler("open(file, 'a').write(f'{os.getpid()}\\n')\ntime.sleep(600)", [entry()])
    scheduler.start()
    await ground.until(lambda: ground.lines)
    await scheduler.stop()
    assert not is_running(int(ground.lines[0]))


async def test_a_command_that_is_not_there_is_an_error_in_the_log(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = JobScheduler([entry()], list, lambda: True, MachineClock(), ["/nosuch/command"])
    scheduler.start()
    await ground.until(lambda: caplog.records)
    await scheduler.stop()
    assert "does not start" in caplog.records[0].getMessage()


@pytest.mark.parametrize("own_group", [True, False])
def test_a_job_does_not_outlive_its_owner(own_group: bool) -> None:
    """The owner's end of standard input is closed, as it is when the owner is killed."""
    script = """
import threading, time
from tidelog.owned_job import die_with_owner
threading.Thread(target=die_with_owner, daemon=True).start()
print("waits", flush=True)
time.sleep(600)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=own_group
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == b"waits\n"
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(30) == -9
    child.stdout.close()


def test_an_owned_job_is_the_tidelog_command() -> None:
    line = [sys.executable, "-m", "tidelog.owned_job", "spark", "--help"]
    child = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdin is not None and child.stdout is not None
    assert b"compact" in child.stdout.read()
    assert child.wait(30) == 0
    child.stdin.close()
    child.stdout.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
