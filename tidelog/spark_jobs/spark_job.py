"""A Spark job as a command runs it: options of all of them, the session, bars for people, exit codes.

    with spark_job("compact", spark) as job:
        from spark_offload.compaction.job import CompactionOptions, run
        options = CompactionOptions(**spark.choice(tier, topic, partitions), …)
        job.show(run(job.spark, options, job.progress))

Exit codes: 0 when all is well, 1 when the job failed or found damage, 2 for what cannot be meant, 130 when interrupted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from object_store.errors import NoStore, StoreError
from object_store.uri import InvalidStoreUri
from tidelog.output import EXIT_FAILED, EXIT_USAGE, Json, fail
from tidelog.spark_jobs.interruption import Interruption
from tidelog.spark_jobs.python_workers import end_python_workers
from tiering.manifests.manifest import DamagedManifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_offload.reading.catalog import PartitionContents
    from spark_offload.running.job import JobOptions, Progress, Report

Tier = Annotated[
    str, typer.Option("--tier", help="The object store: s3://… or file://…", metavar="URI", envvar="TIDELOG_TIER_URI")
]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="This topic; may be given several times.")]
OneTopic = Annotated[str, typer.Option("--topic", help="The topic.")]
ClusterId = Annotated[str, typer.Option("--cluster-id", help="Which cluster, where the store holds several.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose topics.")]
TopicId = Annotated[str, typer.Option("--topic-id", help="One incarnation of a name that was given twice; 32 hex.")]
Partitions = Annotated[str, typer.Option("--partitions", help="These partitions, like 0,2,5-7.", metavar="LIST")]
Master = Annotated[str | None, typer.Option("--master", help="The Spark cluster; this machine's cores.", metavar="URL")]
Conf = Annotated[list[str] | None, typer.Option("--conf", help="A setting of Spark, NAME=VALUE.", metavar="NAME=VALUE")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Also what Spark itself says of errors, with Java's traces.")]

NEEDED = ("pyspark", "pyarrow", "numpy")
HOW_TO_INSTALL = "run `make install-spark` in a checkout, or pip with the extras `tidelog[spark,export,java]`"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of every job. Without `master` all cores of this machine are used, or spark-submit's choice, whose
    log settings then replace `verbose`."""

    cluster_id: ClusterId = ""
    tenant: Tenant = ""
    topic_id: TopicId = ""
    master: Master = None
    conf: Conf = None
    verbose: Verbose = False
    as_json: Json = False

    def choice(self, tier: str, topics: Sequence[str] | None, partitions: str = "") -> dict[str, Any]:
        """The fields that all `JobOptions` have, for `Options(**spark.choice(…), …)`."""
        return {
            "tier": tier,
            "topics": tuple(name for text in topics or () for name in text.split(",") if name),
            "cluster_id": self.cluster_id,
            "tenant": self.tenant,
            "topic_id": self.topic_id,
            "partitions": partitions,
        }


def pairs(option: str, texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Name and value of each NAME=VALUE given for `option`. Ends the command for any other text."""
    found = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            fail(f"{option} takes NAME=VALUE, not {text!r}", EXIT_USAGE)
        found.append((name, value))
    return tuple(found)


class SparkJob:
    """One run of a job: creates the session on first use, and prints the report."""

    def __init__(
        self,
        name: str,
        options: SparkOptions,
        progress: Progress,
        interruption: Interruption,
        opens: Callable[..., SparkSession],
    ) -> None:
        self.name = name
        self.progress = progress
        self.failed = False
        self._options = options
        self._settings = dict(pairs("--conf", options.conf))
        self._interruption = interruption
        self._opens = opens
        self._session: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._session is None:
            options = self._options
            with self._interruption.lent():
                self._session = self._opens(
                    f"tidelog {self.name}", options.master, self._settings, verbose=options.verbose
                )
        return self._session

    def show(self, report: Report) -> None:
        """Print the report; if it reports a failure, the command exits with 1."""
        self.failed = self.failed or report.failed
        if self._options.as_json:
            print(json.dumps(report.as_json()))
            return
        for line in report.lines():
            print(line)

    def close(self) -> None:
        if self._session is not None:
            try:
                end_python_workers(self._session)
            finally:
                self._session.stop()


@contextmanager
def spark_job(
    name: str,
    options: SparkOptions,
    needed: Sequence[str] = NEEDED,
    opens: Callable[..., SparkSession] | None = None,
) -> Iterator[SparkJob]:
    """The block runs one job; an error in it ends the command with one line and the right exit code. `opens`: see
    `open_session`."""
    missing = [module for module in needed if importlib.util.find_spec(module) is None]
    if missing:
        fail(f"{', '.join(missing)} is missing: {HOW_TO_INSTALL}", EXIT_FAILED)
    with Interruption().block() as interruption:
        from tidelog.spark_jobs.job_progress import open_progress  # noqa: PLC0415  after the check

        failure: BaseException | None = None
        try:
            with open_progress() as progress:
                job = SparkJob(name, options, progress, interruption, opens or open_session)
                try:
                    yield job
                except BaseException as error:
                    failure = error
                    if interruption.heard or isinstance(error, KeyboardInterrupt):
                        interruption.say()
                    raise
                finally:
                    job.close()
        except BaseException as error:
            if interruption.heard or isinstance(error, KeyboardInterrupt):
                interruption.say()
            else:  # last, because Spark may print something while it stops
                _explain(failure or error)
            raise
    if job.failed:
        raise typer.Exit(EXIT_FAILED)


def _explain(error: BaseException) -> None:
    """Ends the command with a message, unless the error is a bug."""
    from spark_offload.options import OptionError  # noqa: PLC0415  only where Spark is

    if isinstance(error, (OptionError, InvalidStoreUri)):
        fail(_in_words_of_commands(str(error)), EXIT_USAGE)
    if isinstance(error, NoStore):
        fail(f"--tier: {error.store}: {error.reason}", EXIT_USAGE)
    if isinstance(error, (StoreError, DamagedManifest)):
        fail(str(error))
    if isinstance(error, Exception) and type(error).__module__.split(".")[0] in ("pyspark", "py4j"):
        fail(_innermost(error))


def open_session(name: str, master: str | None, settings: dict[str, str], *, verbose: bool = False) -> SparkSession:
    """A session on `master`. Ends the command if this machine has no Java."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from spark_offload.running.session import (  # noqa: PLC0415
        LOCAL,
        ON_ONE_MACHINE,
        SUBMITTED,
        NoJava,
        java_directory,
        quiet_java,
        use_this_python,
    )

    submitted = SUBMITTED in os.environ
    builder: Any = SparkSession.builder.appName(name)
    if not submitted:
        try:  # a job ends with a message in one line, so Java prints nothing unless requested
            log_settings = quiet_java(java_directory(), "error" if verbose else "off")
        except NoJava as error:
            fail(str(error))
        builder = builder.config("spark.driver.extraJavaOptions", log_settings)
    use_this_python()  # executors then find the same packages
    if master is None and not submitted:
        master = LOCAL
    if master is not None:
        builder = builder.master(master)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for setting, value in (ON_ONE_MACHINE | _UNIX_SOCKETS).items():
            builder = builder.config(setting, value)
    for setting, value in (_FOR_ALL | settings).items():
        builder = builder.config(setting, value)
    with _java_ends_with_its_start():
        session: SparkSession = builder.getOrCreate()
    if submitted or not (session.sparkContext.master or "").startswith("local"):
        # A source that Spark finds by its name alone runs with the driver's Python on executors too, and code that came
        # with --py-files is not looked through for sources.
        from spark_offload.reading.data_source import TidelogSource  # noqa: PLC0415

        session.dataSource.register(TidelogSource)
    return session


@contextmanager
def _java_ends_with_its_start() -> Iterator[None]:
    """End a Java process whose start was interrupted: PySpark forgets it, and removes the folder where it would write
    its port.

    Such a process would run for ever, even after its standard input has ended.
    """
    from pyspark import java_gateway  # noqa: PLC0415

    gateway: Any = java_gateway
    start, started = gateway.Popen, []

    def remember(*words: Any, **options: Any) -> Any:
        started.append(start(*words, **options))
        return started[-1]

    try:
        with ThreadPoolExecutor(1) as whole:  # no interruption between a start and its recording
            gateway.Popen = lambda *words, **options: whole.submit(remember, *words, **options).result()
            yield
    except KeyboardInterrupt:
        for process in started:
            process.terminate()
        raise
    finally:
        gateway.Popen = start


# Faster, but with them Python's workers may print a traceback when they end, see `tidelog.spark_jobs.python_workers`.
_UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
_FOR_ALL = {
    "spark.ui.showConsoleProgress": "false",  # the bars are ours
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.tidelog.erase.secret": "drawn by each erasure",  # only what stands here is blackened in Spark's event log
}


def look(
    options: JobOptions, source: dict[str, str] | None = None, *, passes_over_damage: bool = False
) -> list[PartitionContents]:
    """The selected data in the bucket. Quick, so that errors are reported before a session is created.

    Raises OptionError, StoreError, InvalidStoreUri, and unless the job `passes_over_damage` DamagedManifest.
    """
    from object_store.blocking import BlockingStore  # noqa: PLC0415
    from spark_offload.reading.catalog import Catalog  # noqa: PLC0415

    reading = options.reading(source)
    with BlockingStore(options.tier) as store:
        return store.wait(lambda: Catalog(store.store, reading, passes_over_damage=passes_over_damage).contents())


def _in_words_of_commands(text: str) -> str:
    """Replace options' names for Spark by those of the command line."""
    for name, flag in _FLAGS.items():
        text = re.sub(rf"\b{name}\b", flag, text)
    return text


_FLAGS = {"clusterId": "--cluster-id", "topicId": "--topic-id"}


def _innermost(error: Exception) -> str:
    """The significant line of a long Java and Python trace: the last exception of Python, if there is one.

    Tidelog's own errors are complete without the names of their classes.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    messages = [line.strip() for line in lines if _PYTHON_ERROR.match(line.strip())]
    if messages and _OWN_ERROR.match(messages[-1]):
        return _in_words_of_commands(_OWN_ERROR.sub("", messages[-1]))
    messages = messages or _after_traces(lines) or [line.strip() for line in lines[:1] if _TRACE not in line]
    return "Spark: " + (messages or [type(error).__name__])[-1]


def _after_traces(lines: Sequence[str]) -> list[str]:
    """The line after the frames of each Python trace, which has the exception, whatever its name."""
    found, inside = [], False
    for line in lines:
        if _TRACE in line:
            inside = True
        elif inside and not line[0].isspace():
            found.append(line.strip())
            inside = False
    return found


_PYTHON_ERROR = re.compile(
    r"(?!org\.|java\.|py4j\.|scala\.)(?:(?:[a-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*(?:Error|Exception)): \S"
)
_TRACE = "Traceback (most recent call last):"
_OWN_ERROR = re.compile(r"(?:spark_offload|object_store|tiering)\.[\w.]*\b[A-Z]\w*: ")
