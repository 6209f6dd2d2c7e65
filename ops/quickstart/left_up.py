"""What `ops quickstart --keep` leaves up, and how it is stopped later: each process by its id and the moment of its start.

A process id alone may be another program's by then.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from ops.quickstart.processes import ChildProcess
from ops.quickstart.servers import remove_sockets

NOTE = "left-up.json"
SCRIPT = "stop.sh"
PATIENCE_S = 30.0
SAME_START_S = 0.1


def note(folder: Path, children: Iterable[ChildProcess]) -> Path:
    """Write down what still runs; returns the script that stops it."""
    alive = [child for child in children if child.alive()]
    rows = [
        {"pid": child.pid, "started": psutil.Process(child.pid).create_time(), "argv": list(child.argv)}
        for child in reversed(alive)
    ]
    (folder / NOTE).write_text(json.dumps(rows))
    script = folder / SCRIPT
    argv = [sys.executable, "-m", "ops.quickstart.left_up", str(folder)]
    script.write_text(f"#!/bin/sh\n# stops what `ops quickstart --keep` left up\nexec {shlex.join(argv)}\n")
    return script


def stop(folder: Path) -> int:
    """End what was noted and still runs, the last started first, and wait until it is gone; returns how many were stopped."""
    rows = json.loads((folder / NOTE).read_text())
    mine = [process for row in rows if (process := _same(row["pid"], row["started"]))]
    for process in mine:
        process.terminate()
        _, stubborn = psutil.wait_procs([process], timeout=PATIENCE_S)
        for other in stubborn:
            other.kill()
    psutil.wait_procs(mine, timeout=PATIENCE_S)
    for row in rows:
        remove_sockets(row["argv"])
    (folder / NOTE).write_text("[]")
    return len(mine)


def _same(pid: int, started: float) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        return process if abs(process.create_time() - started) < SAME_START_S else None
    except psutil.NoSuchProcess:
        return None


if __name__ == "__main__":
    stopped = stop(Path(sys.argv[1]))
    sys.stdout.write(f"stopped {stopped} processes\n" if stopped else "nothing of it was up any more\n")
