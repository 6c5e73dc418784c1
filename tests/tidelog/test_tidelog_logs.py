"""What a node's log may hold at its lowest level."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LIST_BUCKETS = """
import asyncio, logging
import aiobotocore.session
from botocore.config import Config
from tidelog.nodes.logs import configure_logs

async def main():
    configure_logs("{level}", "broker-0")
    logging.getLogger("broker.node").debug("a line of ours")
    session = aiobotocore.session.get_session()
    async with session.create_client(
        "s3", endpoint_url="http://127.0.0.1:1", region_name="us-east-1", config=Config(retries=dict(max_attempts=0)),
        aws_access_key_id="AKID", aws_secret_access_key="c0rrect-h0rse", aws_session_token="b4ttery-st4ple",
    ) as client:
        try:
            await client.list_buckets()
        except Exception as error:
            logging.getLogger("broker.node").error("refused", extra=dict(why=error))

asyncio.run(main())
"""


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_no_level_shows_the_credentials_of_the_object_store(level: str) -> None:
    command = [sys.executable, "-c", _LIST_BUCKETS.format(level=level)]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert ("a line of ours" in log) == (level == "debug") and "refused" in log
    for secret in ("c0rrect-h0rse", "b4ttery-st4ple", "Signature"):
        assert secret not in log
