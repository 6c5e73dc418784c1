"""A tenant of the composed cluster: made by the command in a container, served on this host through both proxies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import private_hosts
from tests.clients.tenant_programs import value
from tests.compose.compose_project import BROKERS, ComposeProject
from tidelog.cluster.client_files import LIBRDKAFKA, TenantAccess, write_client_files
from tidelog.cluster.local_names import names_of

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
DOMAIN, RECORDS = "tidelog.localhost", 100


def test_a_tenant_works_through_either_proxy(project: ComposeProject, tmp_path: Path) -> None:
    reason = None if private_hosts.names_resolve() else private_hosts.problem()
    assert reason is None, reason
    command, bootstrap = ("exec", "-T", "broker-0"), ("--bootstrap", "broker-0:29092", "--json")
    project.compose(*command, "tidelog", "tenants", "create", "demo", *bootstrap)
    key = json.loads(project.compose(*command, "tidelog", "keys", "create", "demo", *bootstrap))
    authority = tmp_path / "ca.pem"
    authority.write_text(project.compose(*command, "cat", "/run/tidelog/tls/ca.pem"))
    access = TenantAccess("demo", key["tenant_id"], key["key"], key["secret"], DOMAIN, project.proxy_port, authority)
    write_client_files(tmp_path, access)
    names = names_of(access.tenant_id, range(BROKERS), DOMAIN)
    for proxy, address in enumerate(("127.0.0.1", "127.0.0.2")):
        hosts = private_hosts.new_file(tmp_path)
        with open(hosts, "a") as lines:
            lines.write(f"{address} {' '.join(names)}\n")
        program = ["tests.clients.tenant_programs", "confluent", str(tmp_path / f"demo.{LIBRDKAFKA}"), f"by-{proxy}"]
        printed = project.here(private_hosts.inside(hosts, [sys.executable, "-m", *program, str(RECORDS)]))
        seen = json.loads(printed.splitlines()[-1])
        assert sorted(seen["values"]) == sorted(value(number).decode() for number in range(RECORDS))
        assert seen["topics"] == [f"by-{number}" for number in range(proxy + 1)]
        assert seen["hosts"] == names[1:]
    shown = project.compose("logs", "--no-color")
    assert key["secret"] not in shown
