"""What a user gets wrong when starting a fleet: each mistake is told where one looks for it, and costs nothing."""

import signal
import time
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildProcess, free_port, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]


def log_of(child: ChildProcess) -> str:
    return child.log_path.read_text(errors="replace")


def test_an_engine_that_is_not_there_is_named_in_log_and_status(fleet: FleetUnderTest) -> None:
    fleet.enqueue(fleet.prompts(8))
    port = free_port()
    worker = fleet.launch_worker("gpu0", f"http://127.0.0.1:{port}")
    wait_until(lambda: "does ENGINE_URL name it?" in log_of(worker), 40, "the log says so")
    wait_until(lambda: "no connection" in fleet.told_by("gpu0").get("cause", ""), 10, "the worker tells so")
    (told,) = fleet.status()["workers"]
    assert told["state"] == "starting"
    assert told["cause"].startswith(f"engine http://127.0.0.1:{port}: no connection (")
    fleet.engine("gpu0", port=port)
    fleet.wait_complete()
    wait_until(lambda: fleet.told_by("gpu0")["cause"] == "", 10, "no cause any more")


def test_a_run_without_workers_says_how_to_start_one(fleet: FleetUnderTest) -> None:
    fleet.enqueue(fleet.prompts(8))
    assert "worker    none is up; beside each engine: `ENGINE_URL=" in fleet.producer("status", "r").out


def test_two_workers_of_one_name_are_told(fleet: FleetUnderTest) -> None:
    fleet.engine()
    first, second = fleet.worker(), fleet.worker()
    for worker in (first, second):
        wait_until(lambda worker=worker: "worker.namesake" in log_of(worker), 20, "the log says so")  # type: ignore[misc]
    wait_until(lambda: "another worker has this name: " in fleet.told_by("gpu0")["cause"], 10, "status says so")
    fleet.enqueue(fleet.prompts(200), "r", "--batch-size", "8")
    fleet.wait_complete()
    fleet.assert_whole(prompts=200)
    assert second.stop() == 0
    wait_until(lambda: fleet.told_by("gpu0").get("cause") == "", 20, "only one is left")


def test_a_worker_with_another_store_leaves_the_run_to_those_that_have_it(fleet: FleetUnderTest, tmp_path: Path) -> None:
    fleet.engine()
    fleet.worker("lost", fleet.engines["gpu0"], FLEET_STORE=f"file://{tmp_path / 'elsewhere'}")
    fleet.enqueue(fleet.prompts(24), "r", "--batch-size", "8")
    wait_until(lambda: "has this worker the FLEET_STORE of the producer?" in fleet.told_by("lost")["cause"], 20, "told")
    assert fleet.status()["parked"] == {}
    fleet.worker()
    fleet.wait_complete(timeout_s=60)
    fleet.assert_whole(prompts=24)


def test_a_redis_that_is_not_there_is_named_with_the_setting(fleet: FleetUnderTest) -> None:
    fleet.engine()
    port = free_port()
    worker = fleet.launch_worker("gpu0", FLEET_BROKER=f"redis://user:secret@127.0.0.1:{port}/0")
    wait_until(lambda: "does FLEET_BROKER name it?" in log_of(worker), 40, "the log says so")
    assert f"broker redis://***@127.0.0.1:{port}/0" in log_of(worker)
    assert "secret" not in log_of(worker)


@pytest.mark.parametrize("command", [("status", "r"), ("runs",), ("enqueue", "SOURCE", "--run", "s"), ("resume", "r")])
def test_a_redis_that_does_not_answer_ends_a_command_with_3_soon(fleet: FleetUnderTest, command: tuple[str, ...]) -> None:
    source = fleet.prompts(8)
    fleet.enqueue(source)
    fleet.redis_process.signal(signal.SIGSTOP)
    begun = time.monotonic()
    try:
        done = fleet.producer(*(str(source) if part == "SOURCE" else part for part in command))
    finally:
        fleet.redis_process.signal(signal.SIGCONT)
    assert done.code == 3
    assert done.err.endswith("is Redis up, and does FLEET_BROKER name it?\n")
    assert time.monotonic() - begun < 25  # ten seconds, and the start of a process on a busy machine


def test_a_port_that_is_taken_is_named(fleet: FleetUnderTest) -> None:
    engine = fleet.engine()
    port = fleet.engines["gpu0"].rsplit(":", 1)[1]
    second = ChildProcess("second", engine.argv, fleet.folder / "second.log")
    fleet.children.append(second)
    second.launch()
    wait_until(lambda: not second.alive(), 20, "it ended")
    assert second.returncode() == 2
    assert f"port {port} of 127.0.0.1: Address already in use; choose another with --port" in log_of(second)
    assert "Traceback" not in log_of(second)


def test_a_setting_that_nobody_reads_is_told_by_worker_and_producer(fleet: FleetUnderTest) -> None:
    fleet.engine()
    worker = fleet.worker("gpu0", FLEET_SLOT="3")
    assert "warning: FLEET_SLOT is no setting, and nothing reads it; did you mean FLEET_SLOTS?" in log_of(worker)
    fleet.settings["FLEET_LEASES"] = "3"
    assert (
        "warning: FLEET_LEASES is no setting, and nothing reads it; did you mean FLEET_LEASE_S?" in fleet.producer("runs").err
    )


def test_a_worker_that_ended_in_order_is_not_called_silent(fleet: FleetUnderTest) -> None:
    fleet.engine()
    worker = fleet.worker()
    fleet.enqueue(fleet.prompts(30), "r", "--batch-size", "5")
    fleet.wait_complete()
    assert worker.stop() == 0
    assert fleet.told_by("gpu0") == {}
    (told,) = fleet.status()["workers"]
    assert (told["state"], told["completed"], told["in_flight"]) == ("gone", 30, None)


def test_a_redis_that_evicts_keys_is_told_when_a_worker_starts(fleet: FleetUnderTest) -> None:
    fleet.client.config_set("maxmemory-policy", "allkeys-lru")
    fleet.engine()
    worker = fleet.worker()
    assert "broker.evicts" in log_of(worker)
    assert "policy=allkeys-lru" in log_of(worker)
