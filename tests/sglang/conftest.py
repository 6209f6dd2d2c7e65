"""The real SGLang on this machine's CPU: one server at a time, kept for the tests that follow each other on it."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.engines.cpu.install import VERSIONS, cache_folder, is_installed, venv_folder
from ops.engines.cpu.models import make_model
from ops.engines.cpu.serving import server_command
from ops.quickstart.processes import ChildProcess, free_port
from ops.quickstart.servers import S3Access, redis_server
from tests.fleet.harness import FleetUnderTest, reachable

START_S = 180.0
"""Three imports of torch on two busy cores."""


@dataclass(frozen=True)
class RealEngine:
    """A server that runs."""

    url: str
    version: str
    model: str


@pytest.fixture(scope="session")
def start_sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], RealEngine]]:
    """Start a version with a model, or give the one that runs if it is that; the one before is stopped."""
    running: list[tuple[RealEngine, ChildProcess]] = []

    def stop_all() -> None:
        while running:
            running.pop()[1].stop()

    def start(version: str, model: str) -> RealEngine:
        if running and (running[0][0].version, running[0][0].model) == (version, model):
            return running[0][0]
        stop_all()
        cache = cache_folder(os.environ)
        if not is_installed(cache, version):
            told = f"SGLang {version} is not installed; `make sglang` does it"
            if os.environ.get("CI"):
                pytest.fail(told)
            pytest.skip(told)
        python = venv_folder(cache, version) / "bin" / "python"
        port = free_port()
        more = ("--reasoning-parser", "qwen3", "--decode-log-interval", "10")
        make_model(cache, python, model)
        argv, environment = server_command(cache, version, model, port, more)
        url = f"http://127.0.0.1:{port}"
        child = ChildProcess(
            f"SGLang {version}",
            argv,
            tmp_path_factory.mktemp("sglang") / "server.log",
            ready=lambda: reachable(f"{url}/health"),
            ready_within_s=START_S,
            env=environment,
            stop_signals=((signal.SIGTERM, 5.0),),
        )
        child.start()
        running.append((RealEngine(url, version, model), child))
        return running[0][0]

    yield start
    stop_all()


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version in turn; by module, so that a server is started once for all tests of a module."""
    value: str = request.param
    return value


@pytest.fixture
def sglang_fleet(tmp_path: Path, s3_access: S3Access) -> Iterator[FleetUnderTest]:
    """Redis and S3 for a fleet on a real engine."""
    port = free_port()
    server = redis_server(tmp_path / "redis", port)
    prefix = f"s3://{s3_access.bucket}/{tmp_path.name}"
    under_test = FleetUnderTest(tmp_path, prefix, s3_access.environment, server.start(), port)
    try:
        yield under_test
    finally:
        under_test.stop()
