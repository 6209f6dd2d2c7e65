"""Servers of the test session: one Redis, one S3 server, started when the first test asks for them, stopped at its end."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from ops.quickstart.processes import ChildProcess
from ops.quickstart.servers import S3Access, redis_server, remove_sockets, s3_server
from workers.contract.settings import FleetSettings

pytest_plugins = ["tests.leftovers"]
hypothesis_settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("busy")  # tests share two cores with each other, and say nothing about time


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildProcess]:
    """The Redis of this session."""
    with redis_server(tmp_path_factory.mktemp("redis"), persistent=False) as server:
        yield server


@pytest.fixture
def redis_url(redis_process: ChildProcess) -> str:
    """URL of an empty Redis."""
    port = redis_process.argv[redis_process.argv.index("--port") + 1]
    with redis.Redis(port=int(port)) as client:
        client.flushall()
    return f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def s3_access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Access]:
    """The S3 server of this session."""
    server, access = s3_server(tmp_path_factory.mktemp("s3"))
    try:
        with server:
            yield access
    finally:
        remove_sockets(server.argv)


@pytest.fixture
def s3_url(s3_access: S3Access, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty prefix of the S3 server, with boto3's variables set for this test."""
    for name, value in s3_access.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_access.bucket}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """URL of an empty folder store."""
    return f"file://{tmp_path / 'store'}"


@pytest.fixture(params=["file", "s3"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Each of the two stores in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def settings(redis_url: str, file_url: str) -> FleetSettings:
    """Settings of a fleet on the session's Redis and a folder."""
    return FleetSettings(broker=redis_url, store=file_url)
