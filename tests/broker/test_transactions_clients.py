"""Whose program is behind a transactional id, as its coordinator heard of it."""

from __future__ import annotations

import pytest

from broker.coordination.transactions.producer_clients import CLIENT_ID_LENGTH_MAX, ProducerClients
from common.errors import ErrorCode
from tests.broker.test_transactions_handlers import Context, Served
from wire.messages import (
    AddPartitionsToTxnRequest,
    DescribeTransactionClientsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    changed,
)

_Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
INIT = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1)
END = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=5, committed=True)
ADD = AddPartitionsToTxnRequest(
    v3_and_below_transactional_id="t", v3_and_below_producer_id=7, v3_and_below_producer_epoch=5,
    v3_and_below_topics=[_Topic(name="flights", partitions=[0])],
)  # fmt: skip
ASKING = [("init_producer_id", INIT, 4), ("end_txn", END, 4), ("add_partitions", ADD, 3)]


def clients(served: Served, *names: str) -> list[tuple[str, str, str]]:
    asked = DescribeTransactionClientsRequest(transactional_ids=list(names))
    rows = served.handlers.describe_clients(Context(0), asked).clients
    return [(row.transactional_id, row.client_id, row.client_host) for row in rows]


@pytest.mark.parametrize(("method", "request_", "version"), ASKING)
async def test_who_asked_last_is_the_client(method: str, request_: object, version: int) -> None:
    served = Served()
    ask = getattr(served.handlers, method)
    await ask(Context(version, client_id="first"), request_)
    await ask(Context(version, client_id="second"), request_)
    assert clients(served, "other", "t") == [("t", "second", "10.0.0.7")]
    await ask(Context(version, client_id=None), request_)
    assert clients(served, "t") == [("t", "", "10.0.0.7")]


@pytest.mark.parametrize(("method", "request_", "version"), ASKING)
async def test_a_client_that_is_refused_is_not_the_producer(method: str, request_: object, version: int) -> None:
    served = Served()
    served.coordinator.code = ErrorCode.PRODUCER_FENCED
    await getattr(served.handlers, method)(Context(version), request_)
    assert not clients(served, "t")


async def test_brokers_are_no_clients_and_a_producer_without_an_id_has_no_transactions() -> None:
    served = Served()
    await served.handlers.end_txn(Context(4, internal=True), END)
    await served.handlers.init_producer_id(Context(4), changed(INIT, transactional_id=None))
    assert not clients(served, "t", "")


def test_as_many_are_known_as_there_is_room_for() -> None:
    known = ProducerClients(ids_max=3)
    for name in "abcad":
        known.note(name, name * 1_000, "10.0.0.7")
    assert len(known) == 3 and known.of("b") is None
    found = known.of("a")
    assert found is not None and found.client_id == "a" * CLIENT_ID_LENGTH_MAX
