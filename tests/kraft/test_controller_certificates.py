"""When a controller's certificate ends: its metrics say so, as those of brokers do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kraft.controller.node import ControllerConfig, ControllerNode
from tests.virtual_time import lab_ports
from tests.wire.tls_world import make_material
from wire.listeners import ListenerConfig, ListenerKind
from wire.tls import TlsContexts

pytestmark = pytest.mark.virtual_time

ADDRESS = ("127.0.0.1", 0)
NAME = 'tidelog_certificate_expires_seconds{listener="CONTROLLER"}'


def shown(node: ControllerNode) -> dict[str, float]:
    lines = node.metrics.text().decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("tidelog_certificate"))
    }


async def test_a_controller_shows_when_its_certificate_ends(tmp_path: Path) -> None:
    material, ports = make_material(tmp_path / "tls"), lab_ports(tmp_path / "controller")
    listener = ListenerConfig("CONTROLLER", ADDRESS, None, ListenerKind.INTERNAL)
    plain = ControllerConfig(1, {1: ADDRESS}, listener, b"s" * 32)
    secured = replace(plain, tls=material.config(client_auth="required"))
    assert secured.tls is not None
    ends_ms = TlsContexts(secured.tls, ports.clock).expires_ms
    assert ends_ms is not None
    assert shown(ControllerNode(ports, secured, pytest.fail)) == {NAME: ends_ms / 1000}
    assert shown(ControllerNode(ports, plain, pytest.fail)) == {}
