"""Stores for tests: a real S3 server, plain HTTP servers, and a proxy before either that does what networks do.

The proxy counts what it passes on, and asks its `fault` about each request: None passes it, a number is answered with
that status, "cut" sends half of the body, "hang up" none of anything.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Request", "StoreProxy", "plain_server", "s3_server"]

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Request:
    """What somebody asked for; `nbytes` is how much of the body was sent."""

    method: str
    path: str
    range: str
    nbytes: int


class StoreProxy:
    """Passes HTTP on to `target`, host and port."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.requests: list[Request] = []
        self.fault: Callable[[str, str], int | str | None] = lambda method, path: None
        #: Cleared, nothing is answered.
        self.open = threading.Event()
        self.open.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Passing, self))
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def fetched(self, name: str = "") -> int:
        """Bytes of the bodies of all answers to GET whose path has this in it."""
        return sum(request.nbytes for request in self.requests if request.method == "GET" and name in request.path)

    def asked(self) -> Counter[str]:
        """How often, by method."""
        return Counter(request.method for request in self.requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: StoreProxy, *args: Any) -> None:
        self.proxy = proxy
        super().__init__(*args)

    def log_message(self, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def _pass_on(self) -> None:
        self.proxy.open.wait()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.proxy.fault(self.command, self.path)
        if fault == "hang up":
            self.proxy.requests.append(Request(self.command, self.path, "", 0))
            self.close_connection = True
            return
        if isinstance(fault, int):
            status, headers, answer = fault, {}, b""
        else:
            status, headers, answer = self._asked(body)
        self._answer(status, headers, answer, len(answer) // 2 if fault == "cut" else len(answer))

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.proxy.target, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, nbytes: int) -> None:
        self.proxy.requests.append(Request(self.command, self.path, self.headers.get("Range", ""), nbytes))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = next((value for name, value in headers.items() if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[:nbytes])
        self.close_connection = nbytes < len(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on


class _Plain(SimpleHTTPRequestHandler):
    """As Python's own server, which knows no ranges."""

    def log_message(self, *args: object) -> None:
        pass


class _Ranged(_Plain):
    """With ranges, and a tag of size and time."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None or not path.is_file():
            super().do_GET()
            return
        size = path.stat().st_size
        start, stop = int(found[1]), min(int(found[2] or size) + 1, size)
        self.send_response_only(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))

    def end_headers(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        super().end_headers()


@contextlib.contextmanager
def plain_server(folder: Path, *, ranges: bool) -> Iterator[str]:
    """An HTTP server of a folder; its host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Ranged if ranges else _Plain, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


_MOTO = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """A process that speaks S3 and accepts any credentials; its host and port. It ends with this one."""
    command = [sys.executable, "-c", _MOTO]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
