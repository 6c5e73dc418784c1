"""The rewriters of all APIs that tenants have."""

from __future__ import annotations

from broker.tenancy.compiler import Compiler, Rewrite, RewriteWork
from wire.apis import APIS
from wire.listeners import ListenerKind


class CompiledNames:
    """By API: None where there is nothing to rewrite."""

    def __init__(self, compiler: Compiler) -> None:
        """Raises UnclassifiedField if a served message has a field without a class."""
        apis = [api for api in APIS.values() if ListenerKind.TENANT in api.kinds]
        self.inward: dict[int, Rewrite | None] = {api.key: compiler.inward(api) for api in apis}
        self.inward_work: dict[int, RewriteWork | None] = {api.key: compiler.inward_work(api) for api in apis}
        self.outward: dict[int, Rewrite | None] = {api.key: compiler.outward(api) for api in apis}
        self.outward_work: dict[int, RewriteWork | None] = {api.key: compiler.outward_work(api) for api in apis}
