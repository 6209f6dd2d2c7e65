"""`ops quickstart`: it touches nothing of the user's fleet, looks at prompts first, stops only what it left up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ops.drill.fleet import BIN
from ops.quickstart import left_up
from ops.quickstart.processes import ChildProcess, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


def quickstart(folder: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(BIN / "ops"), "quickstart", "--simulated", "--folder", str(folder), *options],
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
    )


def shell(script: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["/bin/sh", "-c", script], text=True, capture_output=True, timeout=60, check=False)


def test_a_rehearsal_leaves_the_users_fleet_alone_and_can_be_used_and_stopped_later(
    fleet: FleetUnderTest, tmp_path: Path
) -> None:
    fleet.enqueue(fleet.prompts(20), "mine")
    folder = tmp_path / "quick"
    done = quickstart(folder, "--keep", **fleet.env, AWS_PROFILE="no-such-profile", ENGINE_URL="http://127.0.0.1:1")
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        unused = done.stdout.partition("these variables are not used: ")[2].splitlines()[0].split(", ")
        assert {"AWS_PROFILE", "ENGINE_URL", "FLEET_BROKER", "FLEET_STORE"} <= set(unused)
        mine = fleet.status("mine")
        assert (mine["pending"], mine["workers"]) == (20, [])
        assert [run["run"] for run in json.loads(fleet.producer("runs", "--json").out)["runs"]] == ["mine"]
        used = shell(f"PATH=/usr/bin:/bin; . {folder}/env.sh && producer runs --json")
        assert [run["run"] for run in json.loads(used.stdout)["runs"]] == ["quickstart-quick"]
    finally:
        left = [psutil.Process(row["pid"]) for row in json.loads((folder / left_up.NOTE).read_text())]
        stopped = shell(f"sh {folder}/stop.sh")
    assert stopped.stdout == f"stopped {len(left)} processes\n"
    assert len(left) == 5  # Redis, S3 server, engine, worker, Flower
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert shell(f"sh {folder}/stop.sh").stdout == "nothing of it was up any more\n"


def test_stopping_leaves_a_process_alone_that_only_has_the_number(tmp_path: Path) -> None:
    with ChildProcess("other", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "other.log") as other:
        left_up.note(tmp_path, [other])
        rows = json.loads((tmp_path / left_up.NOTE).read_text())
        (tmp_path / left_up.NOTE).write_text(json.dumps([{**rows[0], "started": rows[0]["started"] - 10}]))
        assert left_up.stop(tmp_path) == 0
        assert other.alive()


def test_prompts_are_looked_at_before_anything_is_started_or_installed(tmp_path: Path) -> None:
    source = tmp_path / "empty.jsonl"
    source.write_text("")
    done = quickstart(tmp_path / "quick", "--prompts", str(source))
    assert done.returncode == 2
    assert f"{source}: empty, or blank lines only" in done.stdout.replace("\n", "")
    assert not (tmp_path / "quick").exists()


def test_an_interrupted_quickstart_leaves_nothing_up_even_if_it_was_to_be_kept(tmp_path: Path) -> None:
    log = tmp_path / "quick.log"
    argv = [str(BIN / "ops"), "quickstart", "--simulated", "--keep", "--folder", str(tmp_path / "quick")]
    with log.open("w") as out:
        started = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        wait_until(lambda: "simulated engine" in log.read_text(), 60, "half of it up")
        parts = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        assert started.wait(60) != 0
    finally:
        started.kill()
        started.wait(10)
    assert parts
    wait_until(
        lambda: not [part for part in parts if part.is_running() and part.status() != psutil.STATUS_ZOMBIE], 20, "all gone"
    )
