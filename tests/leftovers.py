"""Ends a test session with an error if it leaves a process behind; a pytest plugin, loaded by conftest.py.

Every program that the session starts inherits a mark in its environment, so one that outlives its parent is found, too.
"""

import os
import uuid

import psutil
import pytest

MARK = "PROMPTFLEET_TEST_SESSION"
PATIENCE_S = 3.0
OURS_NOT = "multiprocessing.resource_tracker"  # Python's own; ends with the interpreter


def pytest_configure() -> None:
    os.environ[MARK] = uuid.uuid4().hex


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    _, left = psutil.wait_procs(marked(os.environ[MARK]), timeout=PATIENCE_S)
    if not left:
        return
    told = [f"{process.pid} {described(process)}" for process in left]
    for process in left:
        process.kill()
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line("")
        reporter.write_line("the tests left processes behind (killed now):", red=True)
        for line in told:
            reporter.write_line(f"  {line}", red=True)


def marked(mark: str) -> list[psutil.Process]:
    """Running programs that this session started: its descendants, and those that carry its mark."""
    found = psutil.Process().children(recursive=True)
    found += [process for process in psutil.process_iter() if process.pid != os.getpid() and carries(process, mark)]
    return [process for process in set(found) if runs(process) and OURS_NOT not in described(process)]


def carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def described(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return ""
