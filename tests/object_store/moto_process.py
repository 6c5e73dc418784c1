"""moto's S3 server as a process of its own: `python -m tests.object_store.moto_process` prints its port.

Requests are handled one at a time: moto compares and sets without a lock, its conditional writes were not atomic.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class OneAtATime:
    """A WSGI application that is entered by one thread at a time."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        with self._lock:
            body = list(self._application(environ, start_response))
        return iter(body)


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, as other servers do

    def log_request(self, *_: Any) -> None:
        pass


def main() -> None:
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    server.serve_forever()


def _end_with_parent(server: Any) -> None:
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
