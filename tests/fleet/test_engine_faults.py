"""What engines do wrong, with whole processes: nothing is lost, no stray error ends a worker or a batch."""

import signal

import pytest

from ops.quickstart.processes import ChildProcess, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

ENGINE = ("--max-running", "16", "--mean-tokens", "40", "--sigma", "0.8", "--cap", "400", "--tokens-per-second", "200")


def port_of(fleet: FleetUnderTest, name: str = "gpu0") -> int:
    return int(fleet.engines[name].rsplit(":", 1)[1])


def whole(fleet: FleetUnderTest, worker: ChildProcess, prompts: int) -> None:
    """The run ends by itself with nothing failed, under the same worker."""
    fleet.wait_complete(timeout_s=60)
    assert fleet.assert_whole(prompts=prompts)["failed"] == 0
    assert worker.alive()


def test_random_errors_resets_and_a_full_queue_fail_no_prompt(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *ENGINE, "--max-queued", "2")  # 20 slots for 16 + 2: some requests meet 503
    fleet.faults(
        "gpu0",
        {"kind": "status", "code": 500, "share": 0.02},
        {"kind": "disconnect", "share": 0.02},
        {"kind": "status", "code": 503, "share": 0.02, "retry_after": 0.1},
        {"kind": "out_of_memory", "share": 0.01},
    )
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(400), "r", "--batch-size", "16")
    whole(fleet, worker, 400)
    log = worker.log_path.read_text()
    assert "batch.error" not in log
    assert "batch.handed_back" not in log, "a stray error gives no batch back"


def test_a_hang_with_health_200_is_seen_by_the_counters_and_its_batches_run_elsewhere(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *ENGINE)
    fleet.engine("gpu1", *ENGINE)
    worker = fleet.worker("gpu0", FLEET_HANG_S="2", FLEET_ENGINE_GRACE_S="1")
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 40, 30, "the run under way")
    fleet.faults("gpu0", {"kind": "hang"})
    wait_until(lambda: fleet.told_by("gpu0").get("state") == "sick", 15, "the hang seen")
    assert fleet.told_by("gpu0")["cause"].startswith("no token for 2 s with ")
    wait_until(lambda: fleet.client.zcard("fleet:{r}:lease") == 0, 15, "its batches handed back")
    fleet.worker("gpu1")
    whole(fleet, worker, 300)
    fleet.faults("gpu0")
    wait_until(lambda: fleet.told_by("gpu0").get("state") == "running", 15, "it serves again")


def test_an_engine_that_starts_slowly_is_waited_for(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *ENGINE)
    fleet.faults("gpu0", {"kind": "slow_start"})
    worker = fleet.launch_worker()
    fleet.enqueue(fleet.prompts(100))
    wait_until(lambda: fleet.told_by("gpu0").get("state") == "starting", 20, "the worker waits")
    assert not fleet.generated("gpu0")
    assert fleet.client.zcard("fleet:{r}:lease") == 0, "it takes no work before its engine serves"
    fleet.faults("gpu0")
    whole(fleet, worker, 100)


def test_an_engine_that_comes_back_with_another_model_gets_no_more_of_the_run(fleet: FleetUnderTest) -> None:
    engine = fleet.engine("gpu0", *ENGINE, "--model", "/data/models/Qwen3-8B")
    fleet.engine("gpu1", *ENGINE, "--model", "Qwen/qwen3-8b")  # the same, by another path
    worker = fleet.worker("gpu0", FLEET_ENGINE_GRACE_S="60")
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 40, 30, "the run under way")
    engine.kill()
    before = fleet.counted()
    fleet.engine("gpu0", *ENGINE, "--model", "/data/models/Qwen3-32B", port=port_of(fleet))
    wait_until(lambda: "Qwen3-32B" in fleet.told_by("gpu0").get("cause", ""), 30, "the refusal told")
    wanted = "wants model /data/models/Qwen3-8B, the engine serves /data/models/Qwen3-32B"
    assert fleet.told_by("gpu0")["cause"] == f"run r {wanted}; if that is the same, set FLEET_MODEL"
    assert not fleet.generated("gpu0"), "the other model generated nothing of it"
    assert fleet.counted() <= before + 20
    fleet.enqueue(fleet.prompts(32, start=5000), "other", "--batch-size", "16")  # a run that names no model
    fleet.wait_complete("other")
    fleet.worker("gpu1")
    whole(fleet, worker, 300)
    models = {worker["name"].partition("@")[0]: worker["completed"] for worker in fleet.status()["workers"]}
    assert sum(models.values()) == 300


def test_a_run_that_names_its_model_is_refused_from_the_first_batch(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *ENGINE, "--model", "llama")
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(20), "r", "--model", "qwen")
    refusal = "run r wants model qwen, the engine serves llama; if that is the same, set FLEET_MODEL"
    wait_until(lambda: fleet.told_by("gpu0").get("cause") == refusal, 20, "the refusal")
    assert fleet.counted() == 0
    worker.stop()
    worker = fleet.worker("gpu0", FLEET_MODEL="qwen")
    whole(fleet, worker, 20)


def test_an_engine_that_is_killed_again_and_again_ends_the_run_all_the_same(fleet: FleetUnderTest) -> None:
    engine = fleet.engine("gpu0", *ENGINE)
    worker = fleet.worker("gpu0")
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "16")
    for share in (40, 100, 160):
        wait_until(lambda share=share: fleet.counted() > share, 30, "progress")  # type: ignore[misc]
        engine.signal(signal.SIGKILL)
        wait_until(lambda: not engine.alive(), 5, "the engine gone")
        wait_until(lambda: fleet.told_by("gpu0").get("state") == "sick", 15, "its death seen")
        engine.launch()
    whole(fleet, worker, 300)
