"""The proxy that a drill cuts and stalls, before a real server."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ops.drill.proxy import Proxy
from ops.quickstart.processes import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                while chunk := connection.recv(100):
                    connection.sendall(chunk)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionError:
        return True


def asked(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as client:
            client.sendall(b"hello")
            return client.recv(100)
    except OSError:
        return b""


def test_a_proxy_passes_on_resets_when_cut_and_passes_on_again(echo: int) -> None:
    proxy = Proxy(echo).start()
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=2) as client:
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
            proxy.cut()
            assert ended(client)
        assert asked(proxy.port) == b""
        proxy.restore()
        wait_until(lambda: asked(proxy.port) == b"hello", 5, "bytes again")
    finally:
        proxy.stop()
    assert asked(proxy.port) == b""


def test_a_stalled_proxy_says_nothing_and_passes_on_afterwards_what_it_held(echo: int) -> None:
    proxy = Proxy(echo).start()
    try:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5) as client:
            client.sendall(b"one")
            assert client.recv(100) == b"one"
            proxy.stall()
            client.sendall(b"two")
            with pytest.raises(TimeoutError):
                client.recv(100)
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5) as late:
                late.sendall(b"late")
                with pytest.raises(TimeoutError):
                    late.recv(100)
                proxy.restore()
                assert late.recv(100) == b"late"
            assert client.recv(100) == b"two"
    finally:
        proxy.stop()


def test_a_proxy_brings_all_that_was_sent_before_the_end() -> None:
    body = os.urandom(3_000_000)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(body)

        threading.Thread(target=serve, daemon=True).start()
        proxy = Proxy(server.getsockname()[1]).start()
        try:
            got = bytearray()
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
                while chunk := client.recv(65_536):
                    got += chunk
                    time.sleep(0.001)
        finally:
            proxy.stop()
    assert bytes(got) == body
