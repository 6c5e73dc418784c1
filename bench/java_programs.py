"""Apache Kafka's own programs: published jars, fetched by Maven, and their main classes, run by `java -cp`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.peers import MissingTool

VERSIONS = ("4.2.0", "4.1.1")
"""Of Apache Kafka, the newest first."""
WORK = Path(__file__).resolve().parent / "work"
TIMEOUT_S = 90
PATIENCE_S = 4 * TIMEOUT_S  # for what programs do after several failures, on a busy machine
# The processes live for seconds: no optimising compiler, and no collector with threads of its own.
OPTIONS = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
PREPARATION = 2  # counts what `program_jars` does with the jars
ARCHIVE, DEFAULTS = "classes.jsa", "ClientDefaults"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>programs</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-file</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-mirror</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{0}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{0}</version>
<classifier>test</classifier></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{0}</version>
<classifier>test</classifier></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


def program_jars(version: str) -> Path:
    """The folder of the programs' jars, fetched by Maven when it is missing."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            raise MissingTool(f"{tool} is not installed, so Apache Kafka {version}'s programs cannot be run here")
    jars, pom = WORK / f"programs-{version}", POM.format(version)
    done = jars / f"done-{PREPARATION}"
    if not done.exists() or (jars / "pom.xml").read_text() != pom:
        shutil.rmtree(jars, ignore_errors=True)
        jars.mkdir(parents=True)
        (jars / "pom.xml").write_text(pom)
        line = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        subprocess.run(line, cwd=jars, check=True)
        _archive_classes(jars)
        line = [
            "javac",
            "-cp",
            f"{jars}/*",
            "-d",
            str(jars / DEFAULTS),
            str(Path(__file__).with_name(f"{DEFAULTS}.java")),
        ]
        subprocess.run(line, check=True)
        done.touch()
    return jars


def _archive_classes(jars: Path) -> None:
    """Keep the classes of a client that finds no broker ready for those that follow: it halves what a tool costs."""
    config = jars / "archive.properties"
    config.write_text("request.timeout.ms=500\ndefault.api.timeout.ms=1000\n")
    line = [
        "java", *OPTIONS, f"-XX:ArchiveClassesAtExit={jars / ARCHIVE}", "-cp", f"{jars}/*", "kafka.admin.ConfigCommand",
        "--bootstrap-server", "127.0.0.1:1", "--command-config", str(config), "--entity-type", "brokers",
        "--entity-default", "--describe",
    ]  # fmt: skip
    subprocess.run(line, capture_output=True, timeout=TIMEOUT_S, check=False)


def java_line(
    jars: Path,
    log_level: str,
    options: Sequence[str],
    main: str,
    arguments: Sequence[str],
    defaults: Path | None = None,
) -> list[str]:
    """The command that runs a main class. `options` are Java's own; `defaults` is a file of settings that its clients
    take where it gives them none."""
    class_path = f"{jars}/*"
    if defaults is not None:
        class_path, main, arguments = f"{class_path}:{jars / DEFAULTS}", DEFAULTS, (str(defaults), main, *arguments)
    archive = [f"-XX:SharedArchiveFile={jars / ARCHIVE}"] if (jars / ARCHIVE).exists() else []
    logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    return ["java", *OPTIONS, *archive, logging, *options, "-cp", class_path, main, *arguments]


def expect(holds: object, meaning: str) -> None:
    if not holds:
        raise RuntimeError(f"not so: {meaning}")


def until(holds: Callable[[], object], meaning: str) -> None:
    """RuntimeError when it does not come to hold in `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        expect(time.monotonic() < deadline, meaning)
        time.sleep(0.5)


class JavaTools:
    """Runs tools to their end, against one cluster."""

    def __init__(self, jars: Path, bootstrap: str, *options: str) -> None:
        self._jars = jars
        self.bootstrap = bootstrap
        self._options = options  # of Java itself

    def run(self, main: str, *arguments: str, feed: str = "") -> str:
        """Standard output; RuntimeError when the program fails."""
        done = self._done(main, arguments, feed)
        if done.returncode:
            raise RuntimeError(f"{main} {' '.join(arguments)}: {done.stderr[-600:]}{done.stdout[-600:]}")
        return done.stdout

    def tool(self, name: str, *arguments: str, feed: str = "") -> str:
        return self.run(f"org.apache.kafka.tools.{name}", "--bootstrap-server", self.bootstrap, *arguments, feed=feed)

    def refused(self, name: str, *arguments: str) -> str:
        """What a tool says that has to fail."""
        done = self._done(f"org.apache.kafka.tools.{name}", ("--bootstrap-server", self.bootstrap, *arguments))
        expect(done.returncode, f"{name} {' '.join(arguments)} is refused: {done.stdout[-600:]}")
        return done.stdout + done.stderr

    def _done(self, main: str, arguments: Sequence[str], feed: str = "") -> subprocess.CompletedProcess[str]:
        line = java_line(self._jars, "off", self._options, main, arguments)
        return subprocess.run(line, input=feed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Program:
    """A running Java program whose output, and warnings, go to a file."""

    def __init__(
        self,
        jars: Path,
        out: Path,
        main: str,
        *arguments: str,
        options: Sequence[str] = (),
        defaults: Path | None = None,
    ) -> None:
        """`options` and `defaults` as for `java_line`."""
        self.out = out
        line = java_line(jars, "warn", options, main, arguments, defaults)
        with self.out.open("ab") as file:
            self._process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def said(self) -> str:
        """All that this program, and those before it with the same file, have said."""
        return self.out.read_text(errors="replace")

    def wait(self, seconds: float) -> str:
        """Until it ends by itself; what it said. RuntimeError when it takes longer."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"{self.out.stem} does not end: {self.said()[-800:]}") from None
        return self.said()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it, as a machine does that hangs, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def ended_after(*groups: Sequence[Program]) -> Iterator[None]:
    """No program that is in the groups when the block ends outlives it."""
    try:
        yield
    finally:
        for program in [program for group in groups for program in group]:
            if not program.ended:
                program.kill()
