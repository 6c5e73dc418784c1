"""The records of `__transaction_state` are Apache Kafka's: the bytes below come from its own message classes, 4.2.0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.transactions.records import (
    UnreadableRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    head_of,
)
from broker.coordination.transactions.values import Transaction, TransactionState

EMPTY = Transaction(7, 5, 60_000, updated_ms=11)
ABORTING = Transaction(
    1 << 40,
    32_767,
    60_000,
    TransactionState.PREPARE_ABORT,
    {"flights": (0, 300), "x": (2,)},
    12,
    11,
    9,
    10,
    version=2,
)
KAFKAS = {
    "0 empty": (EMPTY, "0000000000000000000700050000ea6000ffffffff000000000000000bffffffffffffffff"),
    "0 prepared": (
        ABORTING._replace(previous_id=-1, next_id=-1, version=0),
        "000000000100000000007fff0000ea6003000000020007666c696768747300000002000000000000012c00017800000001"
        "00000002000000000000000c000000000000000b",
    ),
    "1 empty": (EMPTY, "0001000000000000000700050000ea600000000000000000000bffffffffffffffff00"),
    "1 prepared": (
        ABORTING,
        "000100000100000000007fff0000ea60030308666c696768747303000000000000012c000278020000000200000000000000000c"
        "000000000000000b03000800000000000000090108000000000000000a02020002",
    ),
}
TRANSACTIONS = st.builds(
    Transaction,
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, 32_767),
    st.integers(1, (1 << 31) - 1),
    st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    st.dictionaries(st.text(max_size=20), st.lists(st.integers(0, 1 << 20), max_size=200, unique=True).map(tuple)),
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 50),
    st.integers(-1, 1 << 50),
    st.integers(-1, 32_767),
    st.integers(0, 2),
)


@pytest.mark.parametrize(("transaction", "kafkas"), KAFKAS.values(), ids=KAFKAS)
def test_bytes_are_kafkas(transaction: Transaction, kafkas: str) -> None:
    value = bytes.fromhex(kafkas)
    assert encode_value(transaction, flexible=value[1] == 1) == value
    assert decode_value(value) == transaction


def test_key_is_kafkas() -> None:
    assert encode_key("tä") == bytes.fromhex("0000000374c3a4")
    assert decode_key(encode_key("tä")) == "tä"
    assert decode_key(b"\0\1later kinds") is None


def test_remembered_epoch_is_a_tagged_field_that_others_skip() -> None:
    value = encode_value(ABORTING._replace(last_epoch=32_766), flexible=True)
    without = bytes.fromhex(KAFKAS["1 prepared"][1])
    tags_at = len(without) - len(bytes.fromhex("03000800000000000000090108000000000000000a02020002"))
    assert value == without[:tags_at] + b"\4" + without[tags_at + 1 :] + bytes.fromhex("904e027ffe")
    assert decode_value(value).last_epoch == 32_766


def test_fields_of_later_versions_are_skipped() -> None:
    value = bytes.fromhex(KAFKAS["1 empty"][1])[:-1] + bytes.fromhex("0103020007")  # NextProducerEpoch
    assert decode_value(value) == EMPTY


@given(TRANSACTIONS)
def test_round_trip(transaction: Transaction) -> None:
    value = encode_value(transaction, flexible=True)
    assert decode_value(value) == transaction
    assert head_of(value) == (transaction.producer_id, transaction.state)
    plain = transaction._replace(previous_id=-1, next_id=-1, last_epoch=-1, version=0)
    assert decode_value(encode_value(transaction, flexible=False)) == plain


@given(st.data())
def test_damaged_bytes_are_unreadable_or_read(data: st.DataObject) -> None:
    """Nothing else comes of them: no other error, and no memory that is not there."""
    value = bytearray(encode_value(data.draw(TRANSACTIONS), flexible=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    for some in (cut, bytes(value)):
        try:
            decode_value(some)
        except UnreadableRecord:
            continue


@pytest.mark.parametrize("key", [b"\0\0", b"\0\0\0\5abc", b"\0\0\0\1\xff"])
def test_damaged_key(key: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_key(key)
