"""Which engine the quickstart uses: one that is given, the real SGLang on this machine's CPU, or the simulated one."""

import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from ops.quickstart.processes import ChildProcess, free_port

CPU_VERSION = "0.5.11"
CPU_MODEL = "smollm2-135m"
CPU_START_S = 240.0
SIMULATED_START_S = 30.0


class EngineNotInstalled(Exception):
    """The real engine cannot be had here."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"the real SGLang could not be installed here ({self.cause}); `make rehearse` does the same with a simulated "
            "engine, ENGINE_URL=http://… uses one that runs elsewhere"
        )


def install_cpu_engine() -> None:
    """Install SGLang and the model into the cache, if they are not there.

    Raises:
        EngineNotInstalled: The installation failed.
    """
    for action in (["install", CPU_VERSION], ["model", CPU_MODEL]):
        done = subprocess.run([sys.executable, "-m", "ops.engines.cpu", *action], check=False)
        if done.returncode:
            raise EngineNotInstalled(f"`python -m ops.engines.cpu {' '.join(action)}` ended with {done.returncode}")


def cpu_engine(folder: Path) -> tuple[ChildProcess, str]:
    """The real SGLang on the CPU with a small real model, not yet started, and its URL."""
    port = free_port()
    argv = [sys.executable, "-m", "ops.engines.cpu", "serve"]
    argv += ["--version", CPU_VERSION, "--model", CPU_MODEL, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    return _engine(f"SGLang {CPU_VERSION} on the CPU", argv, folder / "engine.log", url, CPU_START_S), url


def simulated_engine(folder: Path) -> tuple[ChildProcess, str]:
    """A simulated engine, not yet started, and its URL."""
    port = free_port()
    argv = [str(Path(sys.executable).with_name("ops")), "simulate-engine", "--port", str(port)]
    argv += ["--max-running", "8", "--mean-tokens", "60", "--sigma", "0.8", "--cap", "512", "--tokens-per-second", "80"]
    url = f"http://127.0.0.1:{port}"
    return _engine("simulated engine", argv, folder / "engine.log", url, SIMULATED_START_S), url


def _engine(name: str, argv: list[str], log_path: Path, url: str, ready_within_s: float) -> ChildProcess:
    return ChildProcess(name, argv, log_path, ready=lambda: answers(f"{url}/health"), ready_within_s=ready_within_s)


def answers(url: str) -> bool:
    """Whether a URL answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=25) as response:  # noqa: S310  (our own http address)
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
