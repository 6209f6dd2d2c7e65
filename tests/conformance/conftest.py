"""Simulators of both versions, with the settings of the recorded servers."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildProcess, free_port
from tests.conformance.checks import MODELS
from tests.fleet.harness import reachable

OPS = str(Path(sys.executable).with_name("ops"))
LENGTHS = {
    MODELS[0]: ("--mean-tokens", "1900", "--sigma", "0", "--cap", "1900"),
    MODELS[1]: ("--mean-tokens", "15", "--sigma", "0", "--thinking-share", "0.5"),
}


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], str]]:
    """URL of the simulator of a version and model, started when first asked for: two requests run, one waits."""
    running: dict[tuple[str, str], tuple[str, ChildProcess]] = {}

    def start(version: str, model: str) -> str:
        if (version, model) not in running:
            port = free_port()
            argv = [OPS, "simulate-engine", "--port", str(port), "--version", version, "--model", model, *LENGTHS[model]]
            argv += ["--context-length", "2048", "--reasoning-parser", "qwen3", "--max-running", "2", "--max-queued", "1"]
            url = f"http://127.0.0.1:{port}"
            log = tmp_path_factory.mktemp("simulator") / "log"
            child = ChildProcess(
                f"simulator {version}", [*argv, "--tokens-per-second", "100"], log, ready=lambda: reachable(f"{url}/v1/models")
            )
            running[version, model] = (url, child.start())
        return running[version, model][0]

    yield start
    for _, child in running.values():
        child.kill()
