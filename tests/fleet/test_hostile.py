"""What a hostile or unlucky user does: rubbish in the queue, an engine that answers nothing right, a run's name used again."""

import base64
import json
import shutil
import signal
import time

import pytest

from ops.quickstart.processes import wait_until
from tests.fleet.harness import FleetUnderTest
from workers.broker import QUEUE_LISTS
from workers.contract import names

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

PROPERTIES = {"delivery_tag": "t", "delivery_info": {"exchange": "", "routing_key": names.QUEUE}, "body_encoding": "base64"}


def message(body: str, content_type: str = "application/json", task: str = names.TASK_GENERATE) -> str:
    headers = {"lang": "py", "task": task, "id": "x.00000000.y", "root_id": "x", "argsrepr": "", "kwargsrepr": ""}
    envelope = {"body": body, "content-encoding": "utf-8", "content-type": content_type, "headers": headers}
    return json.dumps(envelope | {"properties": PROPERTIES})


def encoded(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


RUBBISH = [
    "not json",
    "",
    "null",
    "3",
    "[1,2]",
    "{}",
    "[" * 100_000,
    message("%%%"),
    message(encoded({})),
    message(encoded([[], {"nonsense": 1}, {}])),
    message(encoded([[], {"run": "nobody", "batch": "00000000", "digest": "x"}, {}])),
    message(encoded([[], {"run": "r", "batch": "../../etc", "digest": "x"}, {}])),
    message(base64.b64encode(b"\x80\x04\x95cos\nsystem\n").decode(), "application/x-python-serialize"),
    message(encoded([[], {}, {}]), task="nobody.knows"),
]


def test_rubbish_in_the_queue_costs_a_line_in_the_log_and_nothing_else(fleet: FleetUnderTest) -> None:
    fleet.engine()
    worker = fleet.worker()
    for rubbish in RUBBISH:
        fleet.client.lpush(QUEUE_LISTS[names.broker_priority(9)], rubbish)
    fleet.enqueue(fleet.prompts(120), "r", "--batch-size", "16")
    fleet.wait_complete()
    fleet.assert_whole(prompts=120)
    assert worker.alive()
    assert all(fleet.client.llen(name) == 0 for name in QUEUE_LISTS)


@pytest.mark.parametrize("code", [401, 404, 500, 503])
def test_an_engine_that_refuses_everything_is_sick_and_fails_no_prompt(fleet: FleetUnderTest, code: int) -> None:
    fleet.engine("good")
    fleet.engine("bad")
    fleet.worker("good")
    fleet.worker("bad", FLEET_ENGINE_GRACE_S="1", FLEET_HANG_S="2", FLEET_REQUEST_TIMEOUT_S="60")
    fleet.faults("bad", {"kind": "status", "code": code})
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "8")
    most = {"open": 0}

    def complete() -> bool:
        most["open"] = max(most["open"], len(fleet.held_by("bad")))
        return fleet.status_of() == "complete"

    wait_until(complete, 45, "the run complete")
    assert most["open"] <= 8, "it does not hoard what it cannot do"
    assert fleet.assert_whole(prompts=300)["failed"] == 0
    assert any(worker["state"] == "sick" for worker in fleet.status()["workers"])


def test_a_runs_name_used_again_after_its_folder_is_gone_is_a_new_run(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(60), "r")
    fleet.wait_complete()
    shutil.rmtree(fleet.folder / "store" / "runs" / "r")
    source = fleet.prompts(60)
    done = fleet.producer("enqueue", str(source), "--run", "r", "--max-tokens", "3", "--json")
    assert done.code == 0, done.err
    assert (done.json["pushed"], done.json["already_done"]) == (1, 0)
    fleet.wait_complete()
    fleet.assert_whole(prompts=60)
    out = fleet.folder / "out.jsonl"
    assert fleet.producer("collect", "r", "-o", str(out)).code == 0
    longest = max(json.loads(line)["usage"]["completion_tokens"] for line in out.read_text().splitlines())
    assert longest <= 3  # the new run's budget, not that of the manifest which the worker had in memory


def test_a_message_of_an_earlier_run_of_the_name_costs_a_look(fleet: FleetUnderTest) -> None:
    fleet.enqueue(fleet.prompts(60), "r")
    lists = [name for name in QUEUE_LISTS if fleet.client.llen(name)]
    (old,) = fleet.client.lrange(lists[0], 0, -1)
    fleet.client.flushall()
    shutil.rmtree(fleet.folder / "store" / "runs" / "r")
    fleet.enqueue(fleet.prompts(60, start=100), "r")
    fleet.client.rpush(lists[0], old)  # before the new one
    fleet.engine()
    worker = fleet.worker()
    fleet.wait_complete()
    assert fleet.assert_whole(prompts=60)["ok"] == 60
    assert "batch.of_earlier_run" in worker.log_path.read_text()
    assert not fleet.status()["parked"]


def test_sigterm_ends_a_worker_though_redis_hangs(fleet: FleetUnderTest) -> None:
    fleet.engine()
    worker = fleet.worker(FLEET_DRAIN_S="0")
    fleet.enqueue(fleet.prompts(400), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 50, 30, "the run under way")
    fleet.redis_process.signal(signal.SIGSTOP)
    try:
        worker.signal(signal.SIGTERM)
        begun = time.monotonic()
        wait_until(lambda: not worker.alive(), 40, "the worker gone")
        assert worker.returncode() == 0
        assert time.monotonic() - begun < 30
    finally:
        fleet.redis_process.signal(signal.SIGCONT)
    fleet.worker()
    fleet.wait_complete()
    fleet.assert_whole(prompts=400)
