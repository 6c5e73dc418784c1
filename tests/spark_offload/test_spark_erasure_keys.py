"""Keys of an erasure: files of them, digests, and finding them among records."""

from __future__ import annotations

import base64
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_offload.erasure import key_digests, key_file
from spark_offload.erasure.key_digests import NO_PLACE, ErasureKeys, KeyDigests, KeyMatcher, digest_of
from spark_offload.erasure.key_file import read_keys
from spark_offload.options import OptionError

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


def test_bounds_of_lines_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "LINE_BYTES_MAX", 5)
    with pytest.raises(OptionError, match="line 1"):
        keys_of(b"123456\n", "text")
    monkeypatch.setattr(key_digests, "KEYS_MAX", 2)
    with pytest.raises(OptionError, match="at most 2 keys"):
        ErasureKeys([(1, b"a"), (2, b"b"), (3, b"c")], SECRET)
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
