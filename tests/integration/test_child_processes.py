"""Child processes: ready in time or not at all, stopped within a bound, nothing of their group left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ops.quickstart.processes import ChildFailed, ChildProcess, wait_until

pytestmark = pytest.mark.integration

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"


def python(code: str, log_path: Path, **more: object) -> ChildProcess:
    child = ChildProcess("child", [sys.executable, "-c", code], log_path)
    child.ready = lambda: log_path.read_text() != ""
    for name, value in more.items():
        setattr(child, name, value)
    return child


def test_a_child_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    child = python("import sys; sys.exit('no such model')", tmp_path / "log", ready=lambda: False)
    with pytest.raises(ChildFailed) as told:
        child.start()
    assert str(told.value) == f"child ended with code 1; the end of {tmp_path / 'log'}:\n  no such model"


def test_a_child_that_is_not_ready_in_time_is_gone(tmp_path: Path) -> None:
    child = python("import time; time.sleep(60)", tmp_path / "log", ready_within_s=0.3)
    with pytest.raises(ChildFailed, match=r"child was not ready within 0\.3 s"):
        child.start()
    assert child.returncode() == -signal.SIGKILL


def test_a_program_that_does_not_exist_is_a_child_that_failed(tmp_path: Path) -> None:
    child = ChildProcess("child", [str(tmp_path / "nothing")], tmp_path / "log")
    with pytest.raises(ChildFailed, match="child could not be started"):
        child.start()
    assert child.stop() is None


def test_a_child_that_ignores_sigterm_is_killed_after_its_patience(tmp_path: Path) -> None:
    child = python(STUBBORN, tmp_path / "log", stop_signals=((signal.SIGTERM, 0.3),)).start()
    begun = time.monotonic()
    assert child.stop() == -signal.SIGKILL
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_child_started_ends_with_it(tmp_path: Path, end: str) -> None:
    child = python(PARENT, tmp_path / "log").start()
    grandchild = psutil.Process(int((tmp_path / "log").read_text()))
    getattr(child, end)()
    wait_until(lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE, 5, "grandchild gone")


def test_a_child_can_be_started_again_after_its_end_but_not_twice(tmp_path: Path) -> None:
    with python("print('up', flush=True); import time; time.sleep(60)", tmp_path / "log") as child:
        first = child.pid
        with pytest.raises(ChildFailed, match="child runs already"):
            child.start()
        child.kill()
        assert child.start().pid != first


LEAVES_AN_ORPHAN = """
import subprocess, sys

def test_it():
    code = "import subprocess; print(subprocess.Popen(['sleep', '61'], stdout=subprocess.DEVNULL).pid)"
    with open("pid", "w") as pid:
        subprocess.run([sys.executable, "-c", code], stdout=pid)
"""


def test_what_a_session_leaves_behind_fails_it_and_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LEAVES_AN_ORPHAN)
    argv = [sys.executable, "-m", "pytest", "-p", "tests.leftovers", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=50, check=False)
    assert done.returncode == 1, done.stdout
    pid = int((tmp_path / "pid").read_text())
    assert f"{pid} sleep 61" in done.stdout
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
