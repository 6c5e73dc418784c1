"""Fields of records as Arrow columns: the same bytes, wherever they lie and however few they are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_offload.segments.arrow_columns import binary_column

FIELDS = st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=30)), max_size=30)


@given(FIELDS, st.binary(max_size=20))
def test_a_column_has_the_bytes_of_each_place(fields: list[tuple[bytes, bytes | None]], after: bytes) -> None:
    """Each field behind a gap; the payload may end with the last one, so that fewer bytes follow than a view holds."""
    payload, at = b"", []
    for gap, field in fields:
        at.append(len(payload) + len(gap))
        payload += gap + (field or b"")
    lengths = [-1 if field is None else len(field) for _, field in fields]
    column = binary_column(memoryview(payload + after), np.array(at, np.int64), np.array(lengths, np.int64))
    column.validate(full=True)
    assert column.to_pylist() == [field for _, field in fields]
