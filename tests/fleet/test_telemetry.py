"""What a worker tells of its engine and itself: equal to what the engine says, and gone when it cannot be read any more."""

import time

import pytest

from ops.drill.fleet import get_json
from ops.quickstart.processes import wait_until
from tests.fleet.harness import FleetUnderTest
from workers.telemetry import STALE_AFTER_S

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]
ENGINE = ("--max-running", "8", "--mean-tokens", "4000", "--sigma", "0.1", "--cap", "8000", "--tokens-per-second", "20")


def test_a_worker_tells_what_its_engine_does(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *ENGINE)
    fleet.worker()
    before = fleet.told_by("gpu0")
    assert "store_write_s" not in before, "nothing was written yet"
    done = fleet.producer("enqueue", str(fleet.prompts(40)), "--run", "r", "--max-tokens", "8000", "--batch-size", "8")
    assert done.code == 0
    wait_until(lambda: fleet.told_by("gpu0").get("engine_running") == "8", 30, "the engine's batch is full, and told")
    wait_until(lambda: float(fleet.told_by("gpu0").get("engine_decoded_total", 0)) > 0, 15, "tokens move")
    told = fleet.told_by("gpu0")
    load = get_json(f"{fleet.engines['gpu0']}/v1/loads")["loads"][0]
    assert (told["engine_running_limit"], told["engine_queued"]) == ("8", "2"), "ten slots for eight places"
    assert float(told["engine_kv_tokens"]) == load["max_total_num_tokens"]
    assert 0 < float(told["engine_kv_usage"]) <= load["token_usage"]
    assert len(told["flags_digest"]) == 12
    assert 0 <= float(told["loop_lag_s"]) < 5
    assert not [name for name in told if name.startswith("gpu_")], "this machine has none"
    first = float(told["engine_decoded_total"])
    wait_until(lambda: float(fleet.told_by("gpu0")["engine_decoded_total"]) > first, 15, "and go on moving")


def test_what_cannot_be_read_any_more_is_absent_and_not_what_it_was(fleet: FleetUnderTest) -> None:
    engine = fleet.engine("gpu0", *ENGINE)
    fleet.worker()
    wait_until(lambda: "engine_kv_tokens" in fleet.told_by("gpu0"), 15, "told")
    engine.kill()
    died_at = time.monotonic()
    wait_until(lambda: "engine_kv_tokens" not in fleet.told_by("gpu0"), STALE_AFTER_S + 15, "not told any more")
    assert time.monotonic() - died_at > STALE_AFTER_S / 2
    assert fleet.told_by("gpu0")["engine_version"], "what it is stays known"


def test_answers_and_their_tokens_are_counted_and_the_store_is_timed(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(60), "r", "--batch-size", "8")
    fleet.wait_complete()
    status = fleet.status()
    wait_until(lambda: fleet.told_by("gpu0")["completed"] == "60", 10, "all told")
    told = fleet.told_by("gpu0")
    assert int(told["completion_tokens"]) == status["total_output_tokens"]
    assert int(told["prompt_tokens"]) == status["total_input_tokens"]
    assert float(told["store_write_s"]) < 5
