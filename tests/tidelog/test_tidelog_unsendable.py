"""What no request can carry ends a command at once: in the library's thread it would end nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import typer
from kafka.errors import UnknownBrokerIdError

from common.settings import LONG_MAX
from tidelog.admin.library_client import AdminClient, Unsendable
from tidelog.commands.tenants import parse_limits
from wire.messages import AlterBrokerHealthRequest, AlterTenantRequest, Request


class Connections:
    """Stands for the library's, and answers with what was sent. It knows broker 7 once it has looked at the cluster."""

    def __init__(self) -> None:
        self.cluster = self
        self.looks = 0

    def begin(self, asking: Any) -> Any:
        return asyncio.ensure_future(asking)

    def run(self, answers: Any, requests: Any) -> Any:
        return asyncio.run(answers(requests))

    def send(self, request: object, broker: int | None) -> Any:
        if broker is not None and not (broker == COMING and self.looks):
            raise UnknownBrokerIdError(broker)
        return asyncio.sleep(0, request)

    async def refresh_metadata(self) -> None:
        self.looks += 1


class Client(AdminClient):
    def __init__(self) -> None:
        self.connections = cast(Any, Connections())


COMING, GONE = 7, 8


def limit(value: int) -> AlterTenantRequest:
    limits = [AlterTenantRequest.AlteredTenantLimit(name="ingress.bytes.per.second", value=value)]
    return AlterTenantRequest(tenant="demo", limits=limits, allow_networks=None, deny_networks=None)


@pytest.mark.parametrize(
    "request_",
    [limit(LONG_MAX + 1), AlterBrokerHealthRequest(action=1, broker_id=1 << 40, force=False)],
)
def test_a_number_that_its_field_cannot_hold_is_refused_before_it_is_sent(request_: Request[Any]) -> None:
    with pytest.raises(Unsendable, match=r"^a number or text is too large"):
        Client().send(request_)


def test_the_largest_number_is_sent() -> None:
    sent: object = Client().send(limit(LONG_MAX))
    assert sent == limit(LONG_MAX)


def test_a_broker_that_has_come_meanwhile_is_found_and_one_that_is_gone_fails_its_own_request_alone() -> None:
    client, request = Client(), limit(1)
    answers: list[object] = [*client.send_all([(request, None), (request, COMING), (request, GONE)])]
    assert answers[:2] == [request, request]
    assert isinstance(answers[2], UnknownBrokerIdError)
    assert client.connections.looks == 1
    with pytest.raises(UnknownBrokerIdError):
        client.send(request, GONE)


def test_a_limit_that_is_too_large_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_limits([f"ingress.bytes.per.second={LONG_MAX}"]) == {"ingress.bytes.per.second": LONG_MAX}
    with pytest.raises(typer.Exit):
        parse_limits([f"ingress.bytes.per.second={LONG_MAX + 1}"])
    assert str(LONG_MAX) in capsys.readouterr().err
