"""Every state, request, epoch and protocol together: a shard answers as Apache Kafka's coordinator does.

The epoch in a request is the stored one ("same"), the one before it ("retried"), an "older" or a "newer" one. What is
expected are the answers of a running Apache Kafka (`transaction_oracle/answers.txt`): code, and whether it changed
anything.
"""

from __future__ import annotations

import pytest

from broker.coordination.transactions.values import Producer, Transaction, TransactionState
from common.errors import ErrorCode
from tests.broker.transaction_driver import START_MS, TransactionDriver
from tests.broker.transaction_oracle.differences import expected

ID, EPOCH, OTHER_ID = 7, 5, 8
PRODUCERS = {
    "none": Producer(),
    "same": Producer(ID, EPOCH),
    "retried": Producer(ID, EPOCH - 1),
    "older": Producer(ID, EPOCH - 2),
    "newer": Producer(ID, EPOCH + 1),
    "another id": Producer(OTHER_ID, EPOCH),
}
EXPECTED = expected()
HELD, FOREIGN = ("flights", 0), ("flights", 9)
REQUESTS = (
    "InitProducerId 5", "EndTxn 4 commit", "EndTxn 4 abort", "EndTxn 5 commit", "EndTxn 5 abort",
    *(f"AddPartitionsToTxn {version} {does} {place}"
      for version, does in ((3, "adds"), (5, "adds"), (5, "verifies"))
      for place in ("its partition", "another partition")),
)  # fmt: skip
STATES = {
    "Empty": (TransactionState.EMPTY, 0, False),
    "Empty, asked by its producer": (TransactionState.EMPTY, 0, True),
    **{
        f"{state.title} {protocol}": (state, version, version == 2 and state is not TransactionState.ONGOING)
        for state in TransactionState
        if state is not TransactionState.EMPTY
        for protocol, version in (("old", 0), ("new", 2))
    },
}
"""The state, the protocol that its client spoke, and whether the epoch before is remembered."""
CELLS = [
    pytest.param(label, epoch, state, by_state[state], id=f"{label} {epoch} {state}")
    for (label, epoch), by_state in EXPECTED.items()
    if label in REQUESTS and epoch in PRODUCERS
    for state in STATES
]


def held(state: str) -> Transaction:
    recorded, version, remembers = STATES[state]
    return Transaction(
        ID,
        EPOCH,
        60_000,
        recorded,
        {"flights": (0, 1)} if recorded.is_open else {},
        START_MS,
        START_MS if recorded is not TransactionState.EMPTY else -1,
        ID,
        last_epoch=EPOCH - 1 if remembers else -1,
        version=version,
    )


def ask(driver: TransactionDriver, label: str, producer: Producer) -> ErrorCode:
    if label.startswith("InitProducerId"):
        return driver.init("t", producer)[0]
    is_new = " 5 " in label
    if label.startswith("EndTxn"):
        return driver.end("t", producer, commit=label.endswith("commit"), new_protocol=is_new)[0]
    place = HELD if label.endswith("its partition") else FOREIGN
    if "verifies" in label:
        return driver.verify("t", producer, place)[0]
    return driver.add("t", producer, place, new_protocol=is_new)


@pytest.mark.parametrize(("label", "epoch", "state", "kafkas"), CELLS)
def test_answer(label: str, epoch: str, state: str, kafkas: str) -> None:
    driver = TransactionDriver()
    driver.put("t", held(state))
    records = len(driver.log)

    code = ask(driver, label, PRODUCERS[epoch])

    assert code.name == kafkas.split(";", maxsplit=1)[0].split(",", maxsplit=1)[0]
    assert len(driver.log) > records or "then" not in kafkas
    assert code is ErrorCode.NONE or len(driver.log) == records or "then" in kafkas
    assert driver.state("t").producer_epoch >= EPOCH


def test_the_cells_are_many() -> None:
    assert len(CELLS) > 500


@pytest.mark.parametrize("request_", ["end", "add", "verify"])
@pytest.mark.parametrize("protocol", ["old", "new"])
def test_unknown_id(request_: str, protocol: str) -> None:
    version = {"old": 4, "new": 5}[protocol]
    labels = {
        "end": f"EndTxn {version} commit",
        "add": f"AddPartitionsToTxn {version} adds its partition",
        "verify": "AddPartitionsToTxn 5 verifies its partition",
    }
    code = ask(TransactionDriver(), labels[request_], Producer(ID, EPOCH))
    assert code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("request_", ["end", "add", "verify", "init"])
@pytest.mark.parametrize("transactional_id", ["", "lkc-abc123_"])
def test_empty_id(request_: str, transactional_id: str) -> None:
    """A tenant's empty id has its prefix here."""
    driver = TransactionDriver()
    code: ErrorCode
    if request_ == "init":
        code = driver.init(transactional_id)[0]
    elif request_ == "end":
        code = driver.end(transactional_id, Producer(ID, EPOCH), commit=True)[0]
    elif request_ == "add":
        code = driver.add(transactional_id, Producer(ID, EPOCH), HELD)
    else:
        code = driver.verify(transactional_id, Producer(ID, EPOCH), HELD)[0]
    assert code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_out_of_range(timeout_ms: int) -> None:
    driver = TransactionDriver()
    assert driver.init("t", timeout_ms=timeout_ms)[0] is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not driver.log
