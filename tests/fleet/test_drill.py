"""The drill itself, on real processes: short rounds, a planted loss and a planted double, a round that does not end."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
import redis
from click.testing import CliRunner

from ops.drill import command, rounds
from ops.drill.fleet import BIN
from ops.quickstart.processes import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(200)]
SHORT = {"FLEET_LEASE_S": "6", "FLEET_LEASE_RENEWAL_S": "1"}
"""Back within 9 s: lease, beat, and 2 s."""


def drill(tmp_path: Path, *options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **SHORT, "TMPDIR": str(tmp_path), **settings}
    argv = [str(BIN / "ops"), "drill", *options]
    return subprocess.run(argv, env=env, text=True, capture_output=True, timeout=180, check=False)


def test_a_short_round_loses_and_doubles_nothing(tmp_path: Path) -> None:
    faults = "worker-killed,redis-killed,network-cut,store-cut"
    options = ("--prompts", "600", "--seed", "5", "--faults", faults, "--faults-per-round", "4", "--json")
    done = drill(tmp_path, *options, FLEET_BROKER="redis://127.0.0.1:1/0")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    (one,) = told["rounds"]
    assert (one["seed"], one["prompts"], one["lost"], one["doubled"], one["broken"]) == (5, 600, 0, 0, [])
    met = {fault["kind"]: fault for fault in one["faults"]}
    assert sorted(met) == sorted(faults.split(","))
    assert met["store-cut"].pop("left_out") == "the store is a folder; --s3 starts a server that can be cut off"
    del met["store-cut"]
    for fault in met.values():
        assert fault["left_out"] is None
        assert 0 <= fault["back_s"] <= fault["within_s"] == 9.0
        assert fault["regenerated"] <= fault["may_repeat"]
    assert met["worker-killed"]["back_s"] > 1, "its batches ran elsewhere before its lease can have ended"
    assert (met["redis-killed"]["regenerated"], met["network-cut"]["regenerated"]) == (0, 0)
    assert "seed 5: worker-killed gpu" in done.stderr
    assert "FLEET_BROKER is left alone" in done.stderr
    assert told["logs"] is None
    assert not list(tmp_path.glob("promptfleet-drill-*"))


def test_a_shard_that_vanishes_is_a_loss_and_ends_the_drill_with_one(tmp_path: Path) -> None:
    store, ended = tmp_path / "store", threading.Event()

    def lose_one() -> None:
        while not ended.wait(0.05):
            for shard in store.glob("runs/*/completions/*.zst"):
                shard.unlink()
                return

    thief = threading.Thread(target=lose_one, daemon=True)
    thief.start()
    try:
        options = ("--prompts", "200", "--faults", "connections-cut", "--json")
        done = drill(tmp_path, *options, FLEET_STORE=f"file://{store}")
    finally:
        ended.set()
        thief.join(5)
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["summary"]["lost"] == 16
    assert "G1: 16 prompts lost" in told["rounds"][0]["broken"]
    assert told["summary"]["broken_rounds"] == [1]
    assert Path(told["logs"]).is_dir()
    assert "stay in your store" in done.stderr


def test_a_prompt_that_is_counted_twice_ends_the_drill_with_one(tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    argv = [str(BIN / "ops"), "drill", "--prompts", "300", "--faults", "connections-cut", "--json"]
    with told.open("w") as err:
        env = {**os.environ, **SHORT, "TMPDIR": str(tmp_path)}
        started = subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=err)
    try:
        wait_until(lambda: "store: file://" in told.read_text(), 60, "the fleet up")
        port = re.search(r"own on port (\d+)", told.read_text())
        assert port is not None
        with redis.Redis(port=int(port[1])) as client:
            wait_until(lambda: bool(list(client.scan_iter("fleet:*:counts"))), 60, "the run under way")
            for key in client.scan_iter("fleet:*:counts"):
                client.hincrby(key, "completed", 1)
        out, _ = started.communicate(timeout=120)
    finally:
        started.kill()
        started.wait(10)
    assert started.returncode == 1
    assert "G2: 1 rows doubled or miscounted" in json.loads(out)["rounds"][0]["broken"]


def test_a_users_s3_is_cut_off_through_a_proxy_and_its_runs_stay(tmp_path: Path, s3_url: str) -> None:
    options = ("--prompts", "500", "--faults", "store-cut,store-stalled", "--json")
    done = drill(tmp_path, *options, FLEET_STORE=s3_url)
    assert done.returncode == 0, done.stdout + done.stderr
    (one,) = json.loads(done.stdout)["rounds"]
    assert sorted(fault["kind"] for fault in one["faults"]) == ["store-cut", "store-stalled"]
    assert [fault["left_out"] for fault in one["faults"]] == [None, None]
    assert one["regenerated"] == 0
    audit = subprocess.run(
        [str(BIN / "producer"), "audit", *one["runs"], "--json"],
        env={**os.environ, "FLEET_STORE": s3_url, "FLEET_BROKER": "redis://127.0.0.1:1/0"},
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert json.loads(audit.stdout)["clean"] is True


def test_a_round_that_does_not_end_says_why_and_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_WITHIN_S", 0.2)
    monkeypatch.setattr(command, "exit_on_termination", lambda: None)
    done = CliRunner().invoke(command.drill, ["--prompts", "400", "--rounds", "2", "--json"], env=SHORT)
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    logs = Path(told["logs"])
    try:
        assert told["rounds"][0]["unfinished"] == "the run under way: not within 0.2 s"
        assert (told["summary"]["rounds"], told["summary"]["rounds_wanted"]) == (1, 2)
        assert "parked: {}" in done.stderr
        assert f"worker gpu0 (runs), the end of {logs}" in done.stderr
        assert "worker.ready" in done.stderr
        assert (logs / "redis" / "redis.log").exists()
    finally:
        shutil.rmtree(logs)


def test_an_interrupted_drill_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    argv = [str(BIN / "ops"), "drill", "--prompts", "1000", "--faults", "worker-paused"]
    log = tmp_path / "drill.log"
    with log.open("w") as out:
        started = subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=out, stderr=out)
    try:
        wait_until(lambda: "store: file://" in log.read_text(), 60, "the fleet up")
        parts = psutil.Process(started.pid).children(recursive=True)
        assert len(parts) >= 5  # Redis, two engines, two workers
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 1
    finally:
        started.kill()
        started.wait(10)
    assert not [part for part in parts if part.is_running() and part.status() != psutil.STATUS_ZOMBIE]
    assert not list(tmp_path.glob("promptfleet-drill-*"))


def test_settings_that_contradict_each_other_are_refused_before_anything_starts(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = drill(tmp_path, FLEET_LEASE_RENEWAL_S="5")
    assert done.returncode == 2
    assert "FLEET_LEASE_RENEWAL_S" in done.stderr
    assert time.monotonic() - begun < 15


def test_an_unknown_kind_of_fault_is_refused(tmp_path: Path) -> None:
    done = drill(tmp_path, "--faults", "worker-killed,earthquake")
    assert done.returncode == 2
    assert "earthquake: expected some of worker-killed, " in done.stderr
