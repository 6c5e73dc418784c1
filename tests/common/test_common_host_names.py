"""Host names of tenants: what one side makes, the other reads, and nothing else is a tenant's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.host_names import (
    BROKER_ID_MAX,
    HostName,
    bootstrap_host,
    broker_host,
    is_domain,
    parse_host,
)

TENANTS = st.from_regex(r"lkc-[a-z0-9]{6}", fullmatch=True)
DOMAIN = "kafka.example.org"


@given(TENANTS, st.none() | st.integers(0, BROKER_ID_MAX), st.booleans())
def test_what_is_made_is_read(tenant: str, broker: int | None, loud: bool) -> None:
    name = bootstrap_host(tenant, DOMAIN) if broker is None else broker_host(broker, tenant, DOMAIN)
    assert parse_host(name.upper() if loud else name, DOMAIN) == HostName(tenant, broker)
    assert len(name.split(".")[0]) <= 22


@given(st.text(alphabet="lkc-b0129z.", max_size=40).map(lambda text: f"{text}.{DOMAIN}"))
def test_what_is_read_would_be_made_alike(name: str) -> None:
    host = parse_host(name, DOMAIN)
    if host is not None:
        made = (
            bootstrap_host(host.tenant, DOMAIN)
            if host.broker is None
            else broker_host(host.broker, host.tenant, DOMAIN)
        )
        assert made == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "lkc-abc123",
        DOMAIN,
        f".{DOMAIN}",
        f"lkc-abc123.{DOMAIN}.",
        f"lkc-abc123.other.{DOMAIN}",
        f"b1.lkc-abc123.{DOMAIN}",
        f"b1-lkc-abc12.{DOMAIN}",
        f"lkc-abc1234.{DOMAIN}",
        f"b-lkc-abc123.{DOMAIN}",
        f"b01-lkc-abc123.{DOMAIN}",
        f"b2147483648-lkc-abc123.{DOMAIN}",
        f"b-1-lkc-abc123.{DOMAIN}",
        f"b\u0661-lkc-abc123.{DOMAIN}",
        f"l\u212ac-abc123.{DOMAIN}",
        f"lkc-abc123\n.{DOMAIN}",
        f"lkc-abc123.{DOMAIN}\n",
        "lkc-abc123.kafka.example.com",
    ],
)
def test_anything_else_is_no_tenants_name(name: str) -> None:
    assert parse_host(name, DOMAIN) is None


@pytest.mark.parametrize("domain", ["localhost", "kafka.example.org", "a-b.c1"])
def test_domains(domain: str) -> None:
    assert is_domain(domain)


@pytest.mark.parametrize(
    "domain", ["", ".", "a.", ".a", "A.b", "a..b", "-a.b", "127.0.0.1", "a_b", "a" * 64, "a." * 120]
)
def test_no_domains(domain: str) -> None:
    assert not is_domain(domain)
