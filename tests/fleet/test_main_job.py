"""The main job with real processes: two workers, two simulated engines, one death each way."""

import json
import signal
from pathlib import Path

import pytest

from ops.quickstart.processes import wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]


def test_a_run_goes_from_file_to_file(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    told = fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "16")
    assert (told["accepted"], told["rejected"], told["batches"], told["pushed"]) == (300, 0, 19, 19)
    fleet.wait_complete()
    fleet.assert_whole(prompts=300)
    out = fleet.folder / "out.jsonl"
    assert fleet.producer("collect", "r", "-o", str(out)).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in rows] == [f"p{number}" for number in range(300)]
    assert [row["row"] for row in rows] == list(range(300))
    assert {row["status"] for row in rows} == {"ok"}
    assert all(row["content"] and row["usage"]["completion_tokens"] for row in rows)
    assert rows[0]["provenance"]["worker"].startswith("gpu0@")


def test_a_worker_killed_in_the_middle_loses_and_doubles_nothing(fleet: FleetUnderTest) -> None:
    for name in ("gpu0", "gpu1"):
        fleet.engine(name)
    first, _ = fleet.worker("gpu0"), fleet.worker("gpu1")
    fleet.enqueue(fleet.prompts(600), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 150, 30, "a quarter of the run")
    first.signal(signal.SIGKILL)
    fleet.wait_complete(timeout_s=60)
    fleet.assert_whole(prompts=600)
    begun: dict[str, int] = {}
    for name in ("gpu0", "gpu1"):
        for digest, count in fleet.generated(name).items():
            begun[digest] = begun.get(digest, 0) + count
    assert len(begun) == 600
    repeated = sum(count - 1 for count in begun.values())
    assert repeated <= 20, f"{repeated} prompts generated again; the killed worker had at most 20 slots"


def test_the_same_enqueue_again_changes_nothing(fleet: FleetUnderTest) -> None:
    source = fleet.prompts(200)
    first = fleet.enqueue(source)
    again = fleet.enqueue(source)
    assert (first["pushed"], again["pushed"]) == (4, 0)
    fleet.engine()
    fleet.worker()
    wait_until(lambda: fleet.counted() > 50, 30, "a quarter of the run")
    assert fleet.enqueue(source)["pushed"] == 0
    fleet.wait_complete()
    after = fleet.enqueue(source)
    assert (after["pushed"], after["already_done"]) == (0, 4)
    fleet.assert_whole(prompts=200)
    assert sum(fleet.generated("gpu0").values()) == 200


def test_flushall_in_mid_run_and_resume_ends_clean(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(600), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 150, 30, "a quarter of the run")
    fleet.client.flushall()
    done = fleet.producer("resume", "r", "--json")
    assert done.code == 0, done.err
    fleet.wait_complete()
    fleet.assert_whole(prompts=600)


def test_sigterm_hands_back_what_is_not_finished_and_exits_zero(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0")
    fleet.engine("gpu1")
    first = fleet.worker("gpu0", FLEET_DRAIN_S="1")
    fleet.enqueue(fleet.prompts(400), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
    first.signal(signal.SIGTERM)
    wait_until(lambda: not first.alive(), 15, "the drained worker gone")
    assert first.returncode() == 0
    assert fleet.client.zcard("fleet:{r}:lease") == 0
    fleet.worker("gpu1")
    fleet.wait_complete()
    fleet.assert_whole(prompts=400)


def test_an_engine_that_dies_and_returns_costs_nothing_but_time(fleet: FleetUnderTest) -> None:
    engine = fleet.engine()
    port = int(fleet.engines["gpu0"].rsplit(":", 1)[1])
    fleet.worker(FLEET_ENGINE_GRACE_S="1")
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "16")
    wait_until(lambda: fleet.counted() > 60, 30, "the run under way")
    engine.kill()
    key = "fleet:worker:" + next(iter(fleet.client.scan_iter("fleet:worker:*"))).decode().removeprefix("fleet:worker:")
    wait_until(lambda: fleet.client.hget(key, "state") == b"sick", 15, "the worker calls its engine sick")
    wait_until(lambda: fleet.client.zcard("fleet:{r}:lease") == 0, 15, "its batches handed back")
    fleet.engine("gpu0", port=port)
    fleet.wait_complete()
    assert fleet.assert_whole(prompts=300)["failed"] == 0


def test_bad_answers_are_recorded_as_what_they_are(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.faults(
        "gpu0",
        {"kind": "empty", "match": "prompt number 11"},
        {"kind": "nan", "match": "prompt number 22"},
        {"kind": "abort", "match": "prompt number 33"},
        {"kind": "status", "code": 400, "match": "prompt number 44"},
        {"kind": "status", "code": 500, "match": "prompt number 55", "count": 2},
        {"kind": "error_body", "match": "prompt number 66"},
        {"kind": "not_json", "match": "prompt number 77"},
    )
    fleet.worker()
    fleet.enqueue(fleet.prompts(100))
    fleet.wait_complete()
    fleet.assert_whole(prompts=100)
    out = fleet.folder / "failed.jsonl"
    assert fleet.producer("collect", "r", "-o", str(out), "--only", "failed").code == 0
    failed = {row["id"]: row["reason"] for row in map(json.loads, out.read_text().splitlines())}
    assert failed == {
        "p11": "empty",
        "p22": "nan",
        "p33": "aborted",
        "p44": "rejected_by_engine",
        "p66": "invalid_response",
        "p77": "invalid_response",
    }
    assert fleet.status()["failures"] == {"empty": 1, "nan": 1, "aborted": 1, "rejected_by_engine": 1, "invalid_response": 2}


def test_a_message_lost_in_the_transport_is_pushed_again(fleet: FleetUnderTest) -> None:
    fleet.enqueue(fleet.prompts(200), "r", "--batch-size", "16")
    lists = [key for key in fleet.client.scan_iter("fleet.batches*") if fleet.client.type(key) == b"list"]
    for _ in range(3):
        assert any(fleet.client.rpop(key) for key in lists)
    fleet.engine()
    fleet.worker()
    fleet.wait_complete()
    fleet.assert_whole(prompts=200)


def test_after_a_run_every_key_is_in_the_table_and_will_expire(fleet: FleetUnderTest) -> None:
    fleet.engine()
    fleet.worker()
    fleet.enqueue(fleet.prompts(50))
    fleet.wait_complete()
    for raw in fleet.client.scan_iter("fleet:*"):
        assert fleet.client.pttl(raw) >= 0, raw


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("FLEET_BROKER", "FLEET_BROKER is not set, expected Redis"),
        ("FLEET_STORE", "FLEET_STORE is not set, expected `s3://bucket/prefix`"),
        ("ENGINE_URL", "ENGINE_URL is not set, expected the SGLang server of this worker"),
    ],
)
def test_a_worker_without_a_setting_says_which_and_does_not_start(fleet: FleetUnderTest, missing: str, words: str) -> None:
    child = fleet.launch_worker(engine="http://127.0.0.1:1", **{missing: ""})
    wait_until(lambda: not child.alive(), 20, "the worker gone")
    assert words in Path(child.log_path).read_text()
    assert child.returncode() == 2
