"""The stores that the behaviour suite runs over.

S3 is moto's server, and beside it the real one at `TEST_S3_ENDPOINT` (with the credentials of the environment, or else
MinIO's `minioadmin`) where that is set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import pytest
from aiobotocore.session import get_session
from botocore.loaders import create_loader

from object_store.directory_store import DirectoryStore
from object_store.limits import MIB, StoreLimits
from object_store.opening import open_store
from object_store.store import ObjectStore
from tests.object_store.memory_store import MemoryStore

ROOT = Path(__file__).resolve().parents[2]
REAL_ENDPOINT = os.environ.get("TEST_S3_ENDPOINT", "")
BUCKETS: dict[str, str] = {}
LIMITS = StoreLimits(part_bytes=5 * MIB, page_keys=7, backoff_first_s=0.01, backoff_max_s=0.05)


@pytest.fixture(scope="session")
def parsed_models() -> Iterator[None]:
    """S3's model is parsed once, not by each client: that took most of a short test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield


@pytest.fixture(scope="session")
def moto_endpoint(parsed_models: None) -> Iterator[str]:
    """The URL of a moto server that lives as long as the session."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.object_store.moto_process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"},
    )
    assert process.stdin is not None and process.stdout is not None
    port = process.stdout.readline().strip()
    assert port, "moto's server did not start"
    yield f"http://127.0.0.1:{port}"
    process.stdin.close()
    process.stdout.close()
    process.wait(10)


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some, unless the environment has them for the real endpoint; and none of the machine's own settings."""
    if not (REAL_ENDPOINT and "AWS_ACCESS_KEY_ID" in os.environ):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "minioadmin")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "minioadmin")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


async def new_place(endpoint: str) -> str:
    """The URI, without options, of an empty place: a prefix of its own in the bucket of this process."""
    if endpoint not in BUCKETS:
        BUCKETS[endpoint] = f"tidelog-{uuid.uuid4().hex}"
        async with get_session().create_client("s3", endpoint_url=endpoint, region_name="us-east-1") as client:
            await client.create_bucket(Bucket=BUCKETS[endpoint])
    return f"s3://{BUCKETS[endpoint]}/{uuid.uuid4().hex}/prefix"


@pytest.fixture
async def s3_uri(moto_endpoint: str, aws_credentials: None) -> str:
    """The URI of an empty place in moto."""
    return f"{await new_place(moto_endpoint)}?endpoint={moto_endpoint}&region=us-east-1"


S3_KINDS = ["moto", *(["real"] if REAL_ENDPOINT else [])]


@pytest.fixture(params=["memory", "directory", *(pytest.param(kind, marks=pytest.mark.processes) for kind in S3_KINDS)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "directory":
        opened = DirectoryStore(str(tmp_path / "root"), LIMITS)
        await opened.open()
    else:
        request.getfixturevalue("aws_credentials")
        endpoint = REAL_ENDPOINT if request.param == "real" else request.getfixturevalue("moto_endpoint")
        opened = await open_store(f"{await new_place(endpoint)}?endpoint={endpoint}", LIMITS)
    yield opened
    await opened.close()
