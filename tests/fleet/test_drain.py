"""A worker told to stop: it takes nothing new, finishes what it may, and hands the rest to others at once, with its answers."""

import signal
import sys

import pytest

from ops.quickstart.processes import ChildProcess, wait_until
from tests.fleet.harness import FleetUnderTest, get_json

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
    "10",
    "--seed",
    "7",
)
"""About four seconds an answer, never more than eight."""
ENDLESS = ("--max-running", "16", "--mean-tokens", "64", "--sigma", "0.1", "--cap", "64", "--tokens-per-second", "0.2")


def outcomes(fleet: FleetUnderTest, engine: str = "gpu0") -> dict[str, int]:
    counted: dict[str, int] = {}
    for row in get_json(f"{fleet.engines[engine]}/simulator/requests")["requests"]:
        counted[row["outcome"]] = counted.get(row["outcome"], 0) + 1
    return counted


def begin(fleet: FleetUnderTest, options: tuple[str, ...], prompts: int = 64, **settings: str) -> ChildProcess:
    """One worker with all its slots in use."""
    fleet.engine("gpu0", *options)
    worker = fleet.worker("gpu0", **settings)
    fleet.enqueue(fleet.prompts(prompts), "r", "--batch-size", "16")
    wait_until(lambda: outcomes(fleet).get("running", 0) >= 20, 20, "all slots in use")
    return worker


def gone(worker: ChildProcess, within_s: float) -> None:
    wait_until(lambda: not worker.alive(), within_s, "the worker gone")
    assert worker.returncode() == 0


def assert_taken_up_elsewhere(fleet: FleetUnderTest) -> None:
    """Another worker takes what was handed back within five seconds, and nothing that was answered is generated again."""
    answered = fleet.counted()
    begun_once = sum(fleet.generated("gpu0").values())
    fleet.engine("gpu1")
    wait_until(lambda: fleet.client.zcard("fleet:{r}:lease") == 0, 5, "leases given back")
    fleet.worker("gpu1")
    wait_until(lambda: fleet.client.zcard("fleet:{r}:lease") > 0, 5, "work goes on")
    fleet.wait_complete()
    fleet.assert_whole(prompts=64)
    assert sum(fleet.generated("gpu1").values()) == 64 - answered
    assert sum(fleet.generated("gpu0").values()) == begun_once


def test_with_no_time_to_drain_everything_is_handed_back_and_aborted_at_once(fleet: FleetUnderTest) -> None:
    worker = begin(fleet, ENDLESS, FLEET_DRAIN_S="0")
    worker.signal(signal.SIGTERM)
    gone(worker, 10)
    assert "running" not in outcomes(fleet)
    assert_taken_up_elsewhere(fleet)


def test_what_ends_within_the_time_is_kept_and_the_rest_is_handed_back(fleet: FleetUnderTest) -> None:
    worker = begin(fleet, SLOW, FLEET_DRAIN_S="5")
    in_flight = outcomes(fleet)["running"]
    counted = fleet.counted()
    worker.signal(signal.SIGTERM)
    gone(worker, 15)
    finished = fleet.counted() - counted
    assert 0 < finished <= in_flight, "some of what was in flight was finished, and nothing was begun"
    assert sum(fleet.generated("gpu0").values()) <= counted + in_flight
    assert_taken_up_elsewhere(fleet)


def test_a_long_drain_ends_as_soon_as_nothing_is_in_flight(fleet: FleetUnderTest) -> None:
    worker = begin(fleet, SLOW, FLEET_DRAIN_S="120")
    in_flight, counted = outcomes(fleet)["running"], fleet.counted()
    worker.signal(signal.SIGTERM)
    gone(worker, 30)
    assert fleet.counted() - counted >= in_flight - 1
    assert set(outcomes(fleet)) <= {"stop", "length"}, "nothing was aborted"
    assert_taken_up_elsewhere(fleet)


def test_the_second_signal_ends_a_long_drain_now(fleet: FleetUnderTest) -> None:
    worker = begin(fleet, ENDLESS, FLEET_DRAIN_S="120")
    worker.signal(signal.SIGTERM)
    wait_until(lambda: "worker.draining" in worker.log_path.read_text(), 5, "the drain begun")
    assert worker.alive()
    worker.signal(signal.SIGTERM)
    gone(worker, 10)
    assert "running" not in outcomes(fleet)
    assert_taken_up_elsewhere(fleet)


def test_the_remote_shutdown_of_celery_drains_too(fleet: FleetUnderTest) -> None:
    worker = begin(fleet, SLOW, FLEET_DRAIN_S="5")
    control = ChildProcess(
        "control",
        [sys.executable, "-W", "ignore", "-m", "celery", "-A", "workers", "control", "shutdown"],
        fleet.folder / "control.log",
        env=fleet.env,
    )
    fleet.children.append(control)
    control.launch()
    gone(worker, 20)
    assert "worker.draining" in worker.log_path.read_text()
    assert_taken_up_elsewhere(fleet)
