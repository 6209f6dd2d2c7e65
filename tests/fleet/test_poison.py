"""One prompt that kills its engine, or its worker, each time: it is found, and its neighbours complete."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ops.quickstart.processes import ChildProcess, wait_until
from ops.simulator.lengths import digest_of
from tests.fleet.harness import FleetUnderTest, get_json

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

POISON = "prompt number 37"


def wait_complete(fleet: FleetUnderTest, child: ChildProcess, timeout_s: float, look: Callable[[], None] = lambda: None) -> int:
    """Until the run is complete, starting a child again whenever it has ended, as its supervisor would; returns how often."""
    restarts = 0

    def complete() -> bool:
        nonlocal restarts
        if not child.alive():
            child.launch()
            restarts += 1
        look()
        return fleet.client.hget("fleet:{r}:state", "status") == b"complete"

    wait_until(complete, timeout_s, "run complete")
    return restarts


def failed_rows(fleet: FleetUnderTest) -> list[dict[str, Any]]:
    out = fleet.folder / "failed.jsonl"
    assert fleet.producer("collect", "r", "-o", str(out), "--only", "failed").code == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_a_prompt_that_kills_the_engine_is_found_in_three_deaths_and_alone(fleet: FleetUnderTest) -> None:
    engine = fleet.engine()
    crash = fleet.folder / "crash.toml"
    crash.write_text(f'[[fault]]\nkind = "crash"\nmatch = "{POISON}"\nseconds = 0.2\n')
    engine.kill()
    engine.argv = [*engine.argv, "--faults", str(crash)]
    engine.start()
    fleet.worker(FLEET_ENGINE_GRACE_S="0.5")
    fleet.enqueue(fleet.prompts(200), "r", "--batch-size", "16")
    assert wait_complete(fleet, engine, 60) == 3
    (row,) = failed_rows(fleet)
    assert (row["id"], row["reason"]) == ("p37", "engine_lost")
    assert "in flight at 3 deaths of its engine or worker, at the last one alone: engine http://127.0.0.1" in row["message"]
    fleet.assert_whole(prompts=200)


def test_a_prompt_that_kills_the_worker_is_found_in_three_deaths(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.faults("gpu0", {"kind": "stall", "match": POISON})  # so that it is in flight when the worker is killed
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(100), "r", "--batch-size", "16")

    def kill_if_in_flight() -> None:
        if worker.alive() and in_flight(fleet, POISON):
            worker.kill()

    assert wait_complete(fleet, worker, 80, kill_if_in_flight) == 3
    (row,) = failed_rows(fleet)
    assert (row["id"], row["reason"]) == ("p37", "engine_lost")
    assert row["message"] == "its worker fell silent with this prompt in flight, 3 times"
    fleet.assert_whole(prompts=100)


def in_flight(fleet: FleetUnderTest, text: str) -> bool:
    rows = get_json(f"{fleet.engines['gpu0']}/simulator/requests")["requests"]
    return any(row["prompt_digest"] == digest_of(text.encode()) and row["end"] is None for row in rows)
