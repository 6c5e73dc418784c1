"""One certificate authority and one server certificate for all tests of a run."""

from __future__ import annotations

import pytest

from proxy.server_tls import ServerContext
from tests.proxy.proxy_world import Authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.make()


@pytest.fixture(scope="session")
def certificate(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> ServerContext:
    return authority.server_context(tmp_path_factory.mktemp("tls") / "both.pem")
