"""What no request can carry ends a command at once: in the library's thread it would end nothing."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from common.settings import LONG_MAX
from tidelog.admin.library_client import AdminClient, Unsendable
from tidelog.commands.tenants import parse_limits
from wire.messages import AlterBrokerHealthRequest, AlterTenantRequest, Request


class Sent:
    """Stands for the library's connections, and answers with what was sent."""

    def run(self, _send: object, request: object, _broker: int | None) -> object:
        return request

    def send(self) -> None: ...


class Client(AdminClient):
    def __init__(self) -> None:
        self.connections = Sent()


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


def test_a_limit_that_is_too_large_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_limits([f"ingress.bytes.per.second={LONG_MAX}"]) == {"ingress.bytes.per.second": LONG_MAX}
    with pytest.raises(typer.Exit):
        parse_limits([f"ingress.bytes.per.second={LONG_MAX + 1}"])
    assert str(LONG_MAX) in capsys.readouterr().err
