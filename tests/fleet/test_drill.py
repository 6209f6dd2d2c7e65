"""The drill itself, on real processes: a short round, a planted loss, and the proxy that it cuts."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.drill.fleet import BIN
from ops.drill.proxy import Proxy
from ops.quickstart.processes import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(200)]


def drill(tmp_path: Path, *options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "FLEET_LEASE_S": "3", "FLEET_LEASE_RENEWAL_S": "0.5", "TMPDIR": str(tmp_path), **settings}
    argv = [str(BIN / "ops"), "drill", *options]
    return subprocess.run(argv, env=env, text=True, capture_output=True, timeout=180, check=False)


def test_a_short_round_loses_and_doubles_nothing(tmp_path: Path) -> None:
    faults = "worker-killed,redis-killed,network-cut"
    done = drill(
        tmp_path, "--prompts", "400", "--seed", "5", "--faults", faults, "--json", FLEET_STORE=f"file://{tmp_path / 'store'}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    (one,) = told["rounds"]
    assert (one["seed"], one["prompts"], one["lost"], one["doubled"], one["broken"]) == (5, 400, 0, 0, [])
    assert sorted(fault["kind"] for fault in one["faults"]) == sorted(faults.split(","))
    assert all(0 <= fault["back_s"] <= 20 for fault in one["faults"])
    assert one["regenerated"] <= one["may_regenerate"]
    assert told["logs"] is None
    assert not list(tmp_path.glob("promptfleet-drill-*"))


def test_the_store_of_a_user_is_not_cut_and_says_so(tmp_path: Path) -> None:
    done = drill(tmp_path, "--prompts", "100", "--faults", "store-cut", "--json", FLEET_STORE=f"file://{tmp_path / 'store'}")
    assert done.returncode == 0, done.stdout + done.stderr
    (fault,) = json.loads(done.stdout)["rounds"][0]["faults"]
    assert fault["left_out"] == "the store is yours, and not behind a proxy of the drill"


def test_an_unknown_kind_of_fault_is_refused(tmp_path: Path) -> None:
    done = drill(tmp_path, "--faults", "worker-killed,earthquake")
    assert done.returncode == 2
    assert "earthquake: expected some of worker-killed, " in done.stderr


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
