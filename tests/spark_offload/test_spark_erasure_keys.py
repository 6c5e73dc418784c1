"""Keys of an erasure: files of them, digests, and finding them among records."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_offload.erasure.key_digests import NO_PLACE, ErasureKeys, KeyDigests, KeyMatcher, digest_of
from spark_offload.erasure.key_file import LINE_BYTES_MAX, read_keys
from spark_offload.erasure.secrets_of_tasks import PROPERTY, secret_for_tasks
from spark_offload.options import OptionError
from tests.spark_offload.tier_builder import TierBuilder, plain_batches

SECRET = bytes(range(32))


def keys_of(data: bytes, form: str) -> list[tuple[int, bytes]]:
    return list(read_keys(io.BytesIO(data), form))


def test_a_file_names_a_key_in_each_line() -> None:
    assert keys_of(b"N1\n\n N2 \r\n\xff\x00\nlast", "text") == [
        (1, b"N1"),
        (3, b" N2 \r"),
        (4, b"\xff\x00"),
        (5, b"last"),
    ]
    assert keys_of(b"0aff\n\n 00\r\n", "hex") == [(1, b"\x0a\xff"), (3, b"\x00")]
    assert keys_of(base64.b64encode(b"a\nb") + b"\n", "base64") == [(1, b"a\nb")]


@pytest.mark.parametrize(
    ("data", "form", "told"),
    [(b"00\nsecretkey\n", "hex", "line 2"), (b"se*cretkey\n", "base64", "line 1"), (b"x", "xml", "text, hex, base64")],
)
def test_what_is_wrong_with_a_file_is_told_without_its_keys(data: bytes, form: str, told: str) -> None:
    with pytest.raises(OptionError, match=told) as error:
        keys_of(data, form)
    assert "cretkey" not in str(error.value)
    assert error.value.__cause__ is None


def test_bounds_of_lines_and_keys() -> None:
    longest = b"1" * (LINE_BYTES_MAX - 1) + b"\n"
    assert [number for number, _ in keys_of(longest, "text")] == [1]
    with pytest.raises(OptionError, match="line 1"):
        keys_of(b"1" + longest, "text")
    assert len(ErasureKeys([(1, b"a"), (2, b"b")], SECRET, keys_max=2)) == 2
    with pytest.raises(OptionError, match="at most 2 keys"):
        ErasureKeys([(1, b"a"), (2, b"b"), (3, b"c")], SECRET, keys_max=2)
    with pytest.raises(OptionError, match="names no key"):
        ErasureKeys([], SECRET)


def test_a_million_keys_are_told_apart() -> None:
    keys = ErasureKeys(((line, b"key-%d" % line) for line in range(1, 300_001)), SECRET)
    assert len(keys) == 300_000
    matcher = KeyMatcher(keys.digests, SECRET)
    flags, found = matcher.match(pa.array([b"key-17", b"key-300000", b"key-300001", None, b"key-17"], pa.binary()))
    assert flags.tolist() == [True, True, False, False, True]
    assert {keys.line_of(digest): count for digest, count in found.items()} == {17: 2, 300_000: 1}


def test_a_key_that_stands_twice_has_its_first_line() -> None:
    keys = ErasureKeys([(7, b"b"), (8, b"a"), (9, b"b")], SECRET)
    assert len(keys) == 2
    assert keys.line_of(digest_of(b"b", SECRET)) == 7
    assert b"b" not in repr(keys).encode().split()


def test_digests_with_the_same_first_half_are_told_apart() -> None:
    same = b"\x80" * 8
    packed = b"".join(same + number.to_bytes(8, "big") for number in (1, 2, 5))
    digests = KeyDigests(packed)
    asked = b"".join(same + number.to_bytes(8, "big") for number in (5, 4, 1, 2, 6)) + bytes(16)
    assert digests.places(asked).tolist() == [2, NO_PLACE, 0, 1, NO_PLACE, NO_PLACE]


@given(st.sets(st.binary(max_size=3), max_size=30), st.lists(st.none() | st.binary(max_size=3), max_size=60))
def test_what_is_found_is_what_a_set_finds(erased: set[bytes], keys: list[bytes | None]) -> None:
    packed = b"".join(sorted(digest_of(key, SECRET) for key in erased))
    flags, found = KeyMatcher(KeyDigests(packed), SECRET).match(pa.array(keys, pa.binary()))
    assert flags.tolist() == [key in erased for key in keys]
    wanted = [key for key in keys if key is not None and key in erased]
    assert found == {digest_of(key, SECRET): wanted.count(key) for key in wanted}
    assert flags.dtype == np.bool_


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_event_log_of_spark_does_not_tell_the_secret(tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path / "tier")
    partition = tier.partition("people")
    partition.add(plain_batches(0, 20))
    partition.publish()
    keys, log = tmp_path / "keys", tmp_path / "log"
    keys.write_bytes(b"k1\n")
    log.mkdir()
    settings = {"enabled": "true", "dir": log.as_uri(), "compress": "false"}
    line = [sys.executable, "-m", "tidelog", "spark", "erase", "--tier", tier.uri, "--topic", "people", "--prove"]
    line += ["--key-file", str(keys), "--json"]
    line += [word for name, value in settings.items() for word in ("--conf", f"spark.eventLog.{name}={value}")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=250, check=False)
    assert json.loads(done.stdout)["key_counts"][0]["records"] == 3, done.stderr
    written = "".join(file.read_text() for file in log.rglob("*") if file.is_file())
    told = set(re.findall(r'"spark\.tidelog\.erase\.secret":"([^"]*)"', written))
    assert told == {"*********(redacted)"}


class Conf(dict[str, str]):
    def contains(self, name: str) -> bool:
        return name in self


class Context:
    """As much of a SparkContext as holds settings."""

    def __init__(self, **conf: str) -> None:
        self.conf = Conf({name.replace("_", "."): value for name, value in conf.items()})
        self.local: dict[str, str | None] = {}

    def getConf(self) -> Conf:  # noqa: N802  Spark's name
        return self.conf

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802
        self.local[name] = value


def test_an_event_log_that_would_keep_the_secret_is_refused() -> None:
    context: Any = Context(spark_eventLog_enabled="true")
    with pytest.raises(OptionError, match="event log"), secret_for_tasks(context, SECRET):
        pass
    assert not context.local
    context.conf[PROPERTY] = "anything"
    with secret_for_tasks(context, SECRET):
        assert context.local == {PROPERTY: SECRET.hex()}
    assert context.local == {PROPERTY: None}
