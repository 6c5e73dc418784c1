"""The code that processes of nodes run: loaded once by their supervisor, then run by each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog.nodes.node_imports import import_node


class NodeCode:
    def load(self, role: str, settings: Iterable[str]) -> None:
        """Import the code before a fork, so that no node has to. See `import_node`."""
        import_node(role, settings)

    def run(self, role: str, settings: Mapping[str, str], status_fd: int, life_fd: int) -> int:
        """Run the node; returns its exit status. See `run_node` for the two descriptors."""
        if role == "proxy":
            from tidelog.nodes.proxy_process import run_proxy  # noqa: PLC0415  loaded already

            return run_proxy(settings, status_fd=status_fd, life_fd=life_fd)
        from tidelog.nodes.node_process import run_node  # noqa: PLC0415

        return run_node(role, settings, status_fd=status_fd, life_fd=life_fd)
