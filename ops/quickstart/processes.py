"""Child processes: start one, wait until it is ready, stop it within a bound, kill it on purpose.

Each child has its own process group and its own log file. Knows nothing of what the programs are.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self

POLL_S = 0.05
LOG_TAIL_LINES = 15
KILLED_WITHIN_S = 10.0
PORTS = range(11_000, 22_000)
"""Below the ports of outgoing connections (on Linux from 32,768), and so is what lies 10,000 above. A client that keeps trying
a dead server's port could otherwise get that very port as its own, meet itself, and keep the server from coming back."""


class ChildFailed(Exception):
    """A child died, or was not ready in time; shows the end of its log."""

    def __init__(self, name: str, what: str, log_path: Path) -> None:
        super().__init__(name, what, log_path)
        self.name, self.what, self.log_path = name, what, log_path

    def __str__(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if self.log_path.exists() else []
        return "\n  ".join([f"{self.name} {self.what}; the end of {self.log_path}:", *lines])


_given: set[int] = set()
_system_random = random.SystemRandom()  # tests seed the other one, and two sessions may share a seed


def free_port(twin_offset: int = 0) -> int:
    """A port of the loopback that nobody listens on just now, and that this process has not been given before.

    Args:
        twin_offset: The port so far above it is free, too.

    Raises:
        RuntimeError: None was found.
    """
    for _ in range(1000):
        port = _system_random.choice(PORTS)
        wanted = {port, port + twin_offset}
        if not wanted & _given and all(map(can_listen, wanted)):
            _given.update(wanted)
            return port
    raise RuntimeError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop - 1}")


def can_listen(port: int) -> bool:
    """Whether a port of the loopback is free."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not come; names `what`.
    """
    ends = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_S)


def exit_on_termination() -> None:
    """Let SIGTERM and SIGHUP (a closed terminal) end this process through its context managers, which stop its children."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` wants it to live on
            signal.signal(number, leave)


@dataclass
class ChildProcess:
    """One program that we start and stop. Use it as a context manager, or call `start` and `stop`; it can be started again.

    `ready` is asked until it is true; `stop_signals` are sent in turn, each with its seconds of patience, then SIGKILL.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    ready: Callable[[], bool] = lambda: True
    ready_within_s: float = 20.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    stop_signals: Sequence[tuple[signal.Signals, float]] = ((signal.SIGTERM, 10.0),)
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _group_lives: bool = field(default=False, init=False)

    def start(self) -> Self:
        """Start the program and wait until it is ready.

        Raises:
            ChildFailed: It died, or was not ready in time.
        """
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start the program without waiting.

        Raises:
            ChildFailed: There is no such program, or it runs already.
        """
        if self.alive():
            raise ChildFailed(self.name, "runs already", self.log_path)
        self.kill()  # what a former life left of its group
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    list(self.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.env},
                    cwd=self.cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise ChildFailed(self.name, f"could not be started ({error})", self.log_path) from error
        self._group_lives = True

    def wait_ready(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Wait until it is ready.

        Raises:
            ChildFailed: It died, or was not ready in time.
        """
        ends = time.monotonic() + self.ready_within_s
        while True:
            if not self.alive():
                raise ChildFailed(self.name, f"ended with code {self.returncode()}", self.log_path)
            if self.ready():
                return
            if time.monotonic() > ends:
                raise ChildFailed(self.name, f"was not ready within {self.ready_within_s:g} s", self.log_path)
            on_wait()
            time.sleep(POLL_S)

    @property
    def pid(self) -> int:
        """Of the program."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def returncode(self) -> int | None:
        """How it ended, or None."""
        return None if self.process is None else self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        if self.alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL the whole group, once, and wait for the program to be gone."""
        if self.process is None or not self._group_lives:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self._group_lives = False  # its number may be another's from now on
        self.process.wait(timeout=KILLED_WITHIN_S)

    def stop(self) -> int | None:
        """End it politely, then not; returns its exit code (-9 if it had to be killed), None if it was never started."""
        for number, patience_s in self.stop_signals:
            if self.process is None or not self.alive():
                break
            self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=patience_s)
        self.kill()  # what it left of its group, and itself if it would not go
        return self.returncode()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
