"""An S3 that tests start by themselves: moto's, on a port that the kernel gives."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import WSGIRequestHandler, make_server

BUCKET = "deltaci"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "not a secret"}


class S3:
    """One server with one bucket."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._number = 0
        self._request("PUT", f"/{BUCKET}")

    def _request(self, method: str, path: str) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=20)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        finally:
            connection.close()

    def url(self, prefix: str = "") -> str:
        """Where a test's own blobs are: each call names another place."""
        self._number += 1
        place = prefix or f"case-{self._number}"
        return f"s3://{BUCKET}/{place}?endpoint=http://{self._host}:{self._port}&allow_http=true"

    def names(self) -> list[str]:
        """Everything in the bucket, by its real name."""
        return sorted(s3_backends["123456789012"]["aws"].buckets[BUCKET].keys)


class _Quiet(WSGIRequestHandler):
    """Answers without telling everybody."""

    def log(self, *_: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[S3]:
    """The server, until the end."""
    moto, lock = DomainDispatcherApplication(create_backend_app), Lock()

    def one_by_one(environ: Any, start_response: Any) -> Any:
        # A real S3 looks and writes in one step; moto does so in two, so nobody may come between them.
        with lock:
            return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, one_by_one, threaded=True, request_handler=_Quiet)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield S3("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
