"""Leases with whole processes: a dead worker's batches soon run elsewhere, a live one's never do."""

import signal
import time
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildProcess, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

SLOW = (
    "--max-running",
    "16",
    "--mean-tokens",
    "40",
    "--sigma",
    "0.3",
    "--cap",
    "80",
    "--tokens-per-second",
    "12",
    "--seed",
    "7",
)
"""Four to seven seconds an answer."""
AHEAD_S = 60.0


def begun(fleet: FleetUnderTest, *engines: str) -> int:
    return sum(sum(fleet.generated(engine).values()) for engine in engines)


def two_workers(fleet: FleetUnderTest, *options: str, **settings: str) -> tuple[ChildProcess, ChildProcess]:
    for name in ("gpu0", "gpu1"):
        fleet.engine(name, *options)
    return fleet.worker("gpu0", **settings), fleet.worker("gpu1", **settings)


def test_with_the_default_lease_a_killed_workers_batches_run_elsewhere_within_twenty_seconds(fleet: FleetUnderTest) -> None:
    default = {"FLEET_LEASE_S": "", "FLEET_LEASE_RENEWAL_S": ""}
    first, _ = two_workers(fleet, *SLOW, **default)
    fleet.enqueue(fleet.prompts(160), "r", "--batch-size", "16")
    wait_until(lambda: len(fleet.held_by("gpu0")) >= 2 and fleet.counted() > 5, 30, "both at work")
    lost = fleet.held_by("gpu0")
    first.signal(signal.SIGKILL)
    killed_at = time.monotonic()
    wait_until(
        lambda: not lost & fleet.held_by("gpu0") and bool(lost & fleet.held_by("gpu1")), 20, "its batches held by another"
    )
    assert time.monotonic() - killed_at <= 20
    fleet.wait_complete(timeout_s=90)
    fleet.assert_whole(prompts=160)
    assert begun(fleet, "gpu0", "gpu1") - 160 <= 20, "only what its 20 slots had in flight"


def test_a_live_worker_keeps_a_batch_for_many_leases(fleet: FleetUnderTest) -> None:
    two_workers(fleet, *SLOW, FLEET_LEASE_S="1", FLEET_LEASE_RENEWAL_S="0.3")
    fleet.enqueue(fleet.prompts(64), "r", "--batch-size", "32")
    most = {"attempts": 0}

    def complete() -> bool:
        attempts = [int(count) for count in fleet.client.hvals("fleet:{r}:attempts")]
        most["attempts"] = max([most["attempts"], *attempts])
        return fleet.client.hget("fleet:{r}:state", "status") == b"complete"

    wait_until(complete, 60, "the run complete")
    assert most["attempts"] == 1
    fleet.assert_whole(prompts=64)
    assert begun(fleet, "gpu0", "gpu1") == 64


def test_a_worker_that_was_paused_for_longer_than_its_lease_loses_and_doubles_nothing(fleet: FleetUnderTest) -> None:
    first, _ = two_workers(fleet, *SLOW)
    fleet.enqueue(fleet.prompts(160), "r", "--batch-size", "16")
    wait_until(lambda: bool(fleet.held_by("gpu0")) and fleet.counted() > 5, 30, "both at work")
    lost = fleet.held_by("gpu0")
    first.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: bool(lost & fleet.held_by("gpu1")), 20, "its batches held by another")
    finally:
        first.signal(signal.SIGCONT)
    fleet.wait_complete(timeout_s=90)
    fleet.assert_whole(prompts=160)
    assert first.alive()
    repeated = begun(fleet, "gpu0", "gpu1") - 160
    assert repeated <= len(lost) * 16, f"{repeated} prompts again; it held {len(lost)} batches"


def test_workers_whose_clocks_are_a_minute_apart_cost_nothing(fleet: FleetUnderTest) -> None:
    ahead = fleet.folder / "ahead"
    ahead.mkdir()
    (ahead / "sitecustomize.py").write_text(
        f"import time\n_true = time.time\ntime.time = lambda: _true() + {AHEAD_S}\n", encoding="utf-8"
    )
    for name in ("gpu0", "gpu1"):
        fleet.engine(name)
    root = str(Path(__file__).parents[2])
    fleet.worker("gpu0", PYTHONPATH=f"{ahead}:{root}")
    fleet.worker("gpu1")
    told_at = {name: float(fleet.told_by(name)["updated_at"]) for name in ("gpu0", "gpu1")}
    assert told_at["gpu0"] - told_at["gpu1"] > AHEAD_S / 2, "its clock is ahead"
    fleet.enqueue(fleet.prompts(400), "r", "--batch-size", "16")
    fleet.wait_complete()
    fleet.assert_whole(prompts=400)
    assert begun(fleet, "gpu0", "gpu1") == 400
    assert fleet.status()["rate_per_sec_lifetime"] is None or fleet.status()["rate_per_sec_lifetime"] > 0


def test_of_many_workers_one_sweeps_and_a_batch_that_is_alive_is_not_doubled(fleet: FleetUnderTest) -> None:
    fleet.enqueue(fleet.prompts(320), "r", "--batch-size", "16")
    lists = [key for key in fleet.client.scan_iter("fleet.batches*") if fleet.client.type(key) == b"list"]
    for _ in range(5):  # lost in the transport
        assert any(fleet.client.rpop(key) for key in lists)
    workers = two_workers(fleet)
    fleet.wait_complete(timeout_s=60)
    fleet.assert_whole(prompts=320)
    assert begun(fleet, "gpu0", "gpu1") == 320
    found = [line for worker in workers for line in worker.log_path.read_text().splitlines() if "sweep.found" in line]
    assert found
    assert sum("batches=5" in line for line in found) == 1, found
