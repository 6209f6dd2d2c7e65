"""S3 servers without conditional writes: told at the start, then written after a check. The server is as small as can be."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from workers.contract.settings import FleetSettings
from workers.s3 import S3Store

pytestmark = pytest.mark.integration


class WeakServer(ThreadingHTTPServer):
    """Keeps objects; `refuses` answers a conditional write with 501 instead of passing over its condition."""

    daemon_threads = True

    def __init__(self, *, refuses: bool) -> None:
        super().__init__(("127.0.0.1", 0), WeakHandler)
        self.refuses = refuses
        self.objects: dict[str, bytes] = {}


class WeakHandler(BaseHTTPRequestHandler):
    server: WeakServer

    def do_PUT(self) -> None:
        body = self._body()
        if self.server.refuses and self.headers.get("if-none-match"):
            return self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        self.server.objects[self.path] = body
        return self._answer(200)

    def do_GET(self) -> None:
        body = self.server.objects.get(self.path.partition("?")[0])
        return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>") if body is None else self._answer(200, body)

    def do_HEAD(self) -> None:
        self._answer(200 if self.path in self.server.objects else 404)

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(204)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            return self._chunks()
        raw = self.rfile.read(int(self.headers.get("content-length", "0")))
        return raw.split(b"\r\n", 2)[1] if "aws-chunked" in self.headers.get("content-encoding", "") else raw

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(params=[False, True], ids=["ignores", "refuses"])
def weak_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    server = WeakServer(refuses=request.param)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    settings = FleetSettings(broker="redis://127.0.0.1:1", store="s3://bucket/prefix", s3_old_checksums=True)
    yield S3Store("bucket", "prefix", settings)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_store_without_conditional_writes_says_so_and_checks_before_it_writes(weak_store: S3Store) -> None:
    weaker = weak_store.check()
    assert weaker is not None
    assert "s3://bucket/prefix ignores conditional writes: shards are written after a check" in weaker
    assert weak_store.put_new("k", b"first")
    assert not weak_store.put_new("k", b"second")
    assert weak_store.get("k") == b"first"
