"""Pause, resume, cancel, and two runs that share a fleet."""

import json

import pytest

from ops.quickstart.processes import wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


def leased(fleet: FleetUnderTest, run: str = "r") -> int:
    return int(fleet.client.zcard(f"fleet:{{{run}}}:lease"))


def test_a_paused_run_ends_what_is_begun_begins_nothing_and_goes_on_where_it_was(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(600), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
    done = fleet.producer("pause", "r")
    assert (done.code, done.out) == (
        0,
        "run r is paused (it was running): workers end the batches that they have begun, and begin no other; "
        "`producer resume r` lets it run again\n",
    )
    wait_until(lambda: leased(fleet) == 0, 20, "begun batches ended")
    counted = fleet.counted()
    assert counted % 16 == 0
    assert counted < 600
    fleet.enqueue(fleet.prompts(32), "other", "--batch-size", "16")  # the worker is free for another run
    fleet.wait_complete("other")
    assert fleet.counted() == counted
    status = fleet.status()
    assert (status["status"], status["pending"], status["eta_seconds"]) == ("paused", 600 - counted, {"p50": None, "p90": None})
    resumed = fleet.producer("resume", "r", "--json")
    assert (resumed.code, resumed.json["status"], resumed.json["status_before"]) == (0, "running", "paused")
    fleet.wait_complete()
    fleet.assert_whole(prompts=600)
    assert max(fleet.generated("gpu0").values()) <= 2  # 32 prompts are the same in both runs
    assert sum(fleet.generated("gpu0").values()) == 632


def test_a_cancelled_run_keeps_its_answers_and_can_be_taken_up_again(fleet: FleetUnderTest) -> None:
    slow = ("--max-running", "16", "--mean-tokens", "40", "--sigma", "0.8", "--cap", "80", "--tokens-per-second", "20")
    fleet.engine("gpu0", *slow)
    fleet.worker()
    fleet.enqueue(fleet.prompts(200), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 20, 30, "the run under way")
    answered = fleet.counted()
    assert fleet.producer("cancel", "r").code == 0
    wait_until(lambda: leased(fleet) == 0, 10, "begun batches ended")
    wait_until(lambda: not fleet.client.exists("fleet:{r}:open"), 10, "answers stored")
    status = fleet.status()
    assert status["status"] == "cancelled"
    assert status["completed"] >= answered
    assert 0 < status["failures"]["cancelled"] == status["failed"] <= 64
    wait_until(lambda: fleet.client.zscore("fleet:runs", "r") is None, 10, "nobody looks after it any more")
    assert all(fleet.client.pttl(key) >= 0 for key in fleet.client.scan_iter("fleet:{r}:*"))
    again = fleet.producer("cancel", "r", "--json")
    assert again.json == {"run": "r", "status": "cancelled", "status_before": "cancelled"}
    refused = fleet.producer("pause", "r")
    assert (refused.code, refused.err) == (
        2,
        "run r is cancelled, so it cannot be paused; `producer status r` tells its figures\n",
    )
    out = fleet.folder / "partial.jsonl"
    assert fleet.producer("collect", "r", "--partial", "-o", str(out)).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sum(row["status"] == "ok" for row in rows) == status["completed"]
    assert fleet.producer("resume", "r").code == 0
    fleet.engine("gpu1")
    fleet.worker("gpu1")
    fleet.wait_complete()
    whole = fleet.assert_whole(prompts=200)
    assert whole["failed"] == status["failed"]  # cancelled is an outcome


def test_answers_of_a_batch_that_nobody_holds_are_stored_when_its_run_is_cancelled(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", "--max-running", "16", "--mean-tokens", "400", "--sigma", "0.2", "--tokens-per-second", "20")
    worker = fleet.worker(FLEET_DRAIN_S="0")
    fleet.enqueue(fleet.prompts(64), "r", "--batch-size", "64")
    wait_until(lambda: fleet.counted() > 5, 30, "the batch begun")
    worker.stop()
    answered = fleet.counted()
    assert 0 < answered < 64
    assert fleet.producer("cancel", "r").code == 0
    fleet.worker("gpu0")
    wait_until(lambda: not fleet.client.exists("fleet:{r}:open"), 20, "answers stored")
    fleet.client.flushall()
    audit = fleet.producer("audit", "r", "--json").json
    assert (audit["clean"], audit["ok"], audit["failed"]) == (True, answered, 64 - answered)


def test_a_run_of_higher_priority_goes_first_and_rows_do_not_mix(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.enqueue(fleet.prompts(300), "low", "--batch-size", "16", "--priority", "2")
    fleet.enqueue(fleet.prompts(200, start=1000), "high", "--batch-size", "16", "--priority", "8")
    fleet.worker()
    fleet.wait_complete("high")
    assert fleet.counted("low") <= 64, "only what bridges the end of the other run"
    fleet.wait_complete("low")
    for run, first, count in (("low", 0, 300), ("high", 1000, 200)):
        fleet.assert_whole(run, prompts=count)
        out = fleet.folder / f"{run}.jsonl"
        assert fleet.producer("collect", run, "-o", str(out)).code == 0
        assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [
            f"p{number}" for number in range(first, first + count)
        ]


@pytest.mark.parametrize("command", ["pause", "cancel"])
def test_a_run_that_is_unknown_forgotten_or_over_is_told_from_one_on_hold(fleet: FleetUnderTest, command: str) -> None:
    unknown = fleet.producer(command, "nobody")
    assert unknown.code == 2
    assert "no run nobody in file://" in unknown.err
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(20))
    fleet.wait_complete()
    over = fleet.producer(command, "r")
    wanted = {"pause": "paused", "cancel": "cancelled"}[command]
    assert (over.code, over.err) == (2, f"run r is complete, so it cannot be {wanted}; `producer status r` tells its figures\n")
    fleet.client.flushall()
    forgotten = fleet.producer(command, "r")
    assert (forgotten.code, forgotten.err) == (
        2,
        "Redis does not know run r, so no worker works on it; `producer resume r` would let it run\n",
    )


def test_failed_prompts_are_generated_again_once_their_cause_is_gone(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.faults("gpu0", {"kind": "empty", "match": "number 1"}, {"kind": "status", "code": 400, "match": "number 2"})
    fleet.worker()
    fleet.enqueue(fleet.prompts(120), "r", "--batch-size", "16")
    fleet.wait_complete()
    assert fleet.assert_whole(prompts=120)["failed"] == 2
    fleet.faults("gpu0")
    assert fleet.producer("requeue", "r", "--reason", "empty").code == 0
    fleet.wait_complete("r~r01")
    assert fleet.assert_whole(prompts=120)["failed"] == 1
    assert fleet.producer("requeue", "r").code == 0
    fleet.wait_complete("r~r02")
    assert fleet.assert_whole(prompts=120)["failed"] == 0
    generated = fleet.generated("gpu0")
    assert sorted(generated.values())[-2:] == [2, 2]
    assert sum(generated.values()) == 122
    for key in fleet.client.scan_iter("fleet:*"):
        assert fleet.client.pttl(key) >= 0, key


def test_a_run_that_goes_on_says_where_its_batches_are(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.enqueue(fleet.prompts(40), "r", "--batch-size", "10")
    assert fleet.producer("pause", "r").code == 0
    told = fleet.producer("resume", "r", "--json").json
    assert (told["pushed"] + told["waiting"] + told["leased"], told["pending"]) == (4, 40)
