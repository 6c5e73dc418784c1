"""An API of Kubernetes that knows some StatefulSets by name, for charts that look them up."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

APPS = "/apis/apps/v1"
KINDS = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "apps/v1",
    "resources": [{"name": "statefulsets", "namespaced": True, "kind": "StatefulSet", "verbs": ["get", "list"]}],
}


@contextlib.contextmanager
def kubernetes_with(namespace: str, *stateful_sets: str) -> Iterator[str]:
    """Its address."""
    known = {f"{APPS}/namespaces/{namespace}/statefulsets/{name}": name for name in stateful_sets}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == APPS:
                self._answer(HTTPStatus.OK, KINDS)
            elif path in known:
                metadata = {"name": known[path], "namespace": namespace}
                self._answer(HTTPStatus.OK, {"kind": "StatefulSet", "apiVersion": "apps/v1", "metadata": metadata})
            else:
                missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                self._answer(HTTPStatus.NOT_FOUND, missing)

        def _answer(self, status: HTTPStatus, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
