"""Status and runs as Redis and the store tell them."""

import io
import json
import time
from collections.abc import Mapping

import pytest
import redis
from rich.console import Console

from producer.runs import runs
from producer.status import status
from producer.status_text import screen
from tests.integration.producer_read.conftest import Run
from tests.integration.producer_read.stored_run import CREATED_AT, write_run
from workers.contract import names
from workers.contract.names import RunKeys
from workers.object_store import ObjectStore
from workers.progress.figures import document_of
from workers.progress.run_state import read_run

pytestmark = pytest.mark.integration

KEYS = RunKeys("r")
ALL_KEYS = {
    *("run", "status", "total", "completed", "failed", "pending", "in_flight", "rejected", "rate_per_sec"),
    *("rate_per_sec_lifetime", "eta_seconds", "total_input_tokens", "total_output_tokens", "shards", "shard_bytes", "failures"),
    *("flags", "workers", "eta_hours", "avg_output_tokens", "elapsed_hours", "s3_uploaded", "s3_bytes"),
}


def hset(client: "redis.Redis", key: str, fields: Mapping[str, str | float]) -> None:
    for name, value in fields.items():
        client.hset(key, name, value)


def under_way(client: "redis.Redis", run: str = "r", worker: str = "gpu0@h") -> float:
    """A run with 60 seconds of work behind it: two completed a second, now at 120 + 6 failed of 1000. Returns Redis' time."""
    keys = RunKeys(run)
    now = client.time()[0]
    client.zadd(names.RUNS, {run: now})
    state: dict[str, str | float] = {
        "status": "running",
        "total": 1000,
        "batches": 16,
        "rejected": 3,
        "priority": 4,
        "created_at": now - 3600,
    }
    state["model"] = "m\x1b[31m"
    hset(client, keys.state, state)
    counts = {"completed": 120, "failed": 6, "prompt_tokens": 1000, "completion_tokens": 2520, "batches": 1, "shards": 1}
    hset(client, keys.counts, {**counts, "shard_bytes": 5_000_000})
    client.hset(keys.reasons, mapping={"empty": 6, "timeout": 0})
    client.hset(keys.flags, mapping={"truncated": 9})
    client.hset(keys.workers, mapping={f"{worker}:completed": 100, f"{worker}:failed": 6, "old@h:completed": 20})
    for step in range(31):
        row = [now - 60 + 2 * step, 4 * step, min(6, step), 1, 80 * step]
        client.lpush(keys.series, json.dumps(row))
    client.hset(keys.owner, mapping={"00000001": f"{worker}#abc", "00000002": f"{worker}#def"})
    client.hset(names.worker_key(worker), mapping={"state": "running", "in_flight": 20, "slots": 20, "cause": ""})
    return now


def test_status_of_a_run_under_way(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    told = run_command(status, "r", "--json").json
    assert set(told) >= ALL_KEYS
    assert (told["total"], told["completed"], told["failed"], told["pending"]) == (1000, 120, 6, 874)
    assert (told["status"], told["rejected"], told["in_flight"]) == ("running", 3, 20)
    assert 1.9 < told["rate_per_sec"] < 2.3
    assert 1.9 < told["rate_per_sec_lifetime"] < 2.3
    assert told["eta_seconds"]["p50"] == pytest.approx(874 / told["rate_per_sec"], rel=0.01)
    assert told["eta_seconds"]["p90"] >= told["eta_seconds"]["p50"]
    assert told["eta_hours"] == pytest.approx(told["eta_seconds"]["p50"] / 3600, rel=0.01)
    assert told["elapsed_hours"] == pytest.approx(1, abs=0.01)
    assert (told["total_input_tokens"], told["total_output_tokens"], told["avg_output_tokens"]) == (1000, 2520, 20)
    assert (told["shards"], told["shard_bytes"], told["s3_uploaded"], told["s3_bytes"]) == (1, 5_000_000, 1, 5_000_000)
    assert (told["failures"], told["flags"]) == ({"empty": 6}, {"truncated": 9})
    shown = [(one["name"], one["state"], one["in_flight"], one["completed"], one["failed"]) for one in told["workers"]]
    assert shown == [("gpu0@h", "running", 20, 100, 6), ("old@h", "gone", None, 20, 0)]


def test_status_for_people(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    client.hset(KEYS.parked, "00000003", "found nothing\x1b[2J")
    text = run_command(status, "r").out
    assert "run r: running, model m\\x1b[31m" in text
    assert "1,000 = 120 completed + 6 failed + 874 pending (20 in flight); 3 rows rejected" in text
    assert "1 of 16 shards, 5.0 MB" in text
    assert "parked    1 batch waiting for a person; then `producer resume r`" in text
    assert "failures  empty 6" in text
    assert "gpu0@h: running, 20 of 20 slots busy; of this run 100 completed, 6 failed" in text
    assert "\x1b" not in text


def test_prompts_in_flight_of_workers_on_two_runs_are_not_known(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    under_way(client, run="s")
    assert run_command(status, "r", "--json").json["in_flight"] is None
    client.delete(RunKeys("s").owner)
    assert run_command(status, "r", "--json").json["in_flight"] == 20


def test_a_run_that_stands_still_has_no_rate_and_no_eta(client: "redis.Redis", run_command: Run) -> None:
    now = under_way(client)
    client.delete(KEYS.series)
    for step in range(10):
        client.lpush(KEYS.series, json.dumps([now - 900 + 2 * step, 4 * step, 0, 1, 1]))
    told = run_command(status, "r", "--json").json
    assert told["rate_per_sec"] == 0
    assert told["rate_per_sec_lifetime"] == 2
    assert told["eta_seconds"] == {"p50": None, "p90": None}


def test_a_run_that_just_began_knows_no_rate(client: "redis.Redis", run_command: Run) -> None:
    client.hset(KEYS.state, mapping={"status": "enqueueing"})
    told = run_command(status, "r", "--json").json
    assert (told["total"], told["pending"], told["rate_per_sec"], told["avg_output_tokens"]) == (None, None, None, None)
    assert "? = 0 completed + 0 failed + ? pending" in run_command(status, "r").out


def test_a_complete_run_has_nothing_left(client: "redis.Redis", run_command: Run) -> None:
    now = under_way(client)
    client.hset(KEYS.state, mapping={"status": "complete", "finished_at": int(now - 1800), "total": 126})
    client.delete(KEYS.owner)
    told = run_command(status, "r", "--json").json
    assert (told["eta_seconds"], told["pending"], told["in_flight"]) == ({"p50": 0, "p90": 0}, 0, 0)
    assert told["elapsed_hours"] == pytest.approx(0.5, abs=0.01)
    assert run_command(status, "r", "--watch").code == 0


def test_after_flushall_status_names_resume(store: ObjectStore, run_command: Run) -> None:
    write_run(store)
    ran = run_command(status, "r")
    assert ran.code == 1
    assert ran.out == (
        "Redis does not know run r, but it is in the store: `producer resume r` rebuilds its counters and queue, "
        "`producer audit r` tells its outcomes without Redis\n"
    )
    ran = run_command(status, "r", "--json")
    assert set(ran.json) >= ALL_KEYS
    assert (ran.json["status"], ran.json["completed"], ran.json["total"]) == (None, None, 20)
    assert "producer resume r" in ran.err


def test_exit_codes_say_who_is_away(
    store: ObjectStore, run_command: Run, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_command(status, "nobody")
    assert (ran.code, "no run nobody in" in ran.err) == (2, True)
    under_way(client)
    monkeypatch.setenv("FLEET_STORE", "file:///proc/nothing/here")
    assert run_command(status, "r").code == 0  # a live run needs Redis only
    assert run_command(status, "r", "--json", "--watch").err == (
        "--json prints one document and --watch prints again and again; take one of them"
    )
    monkeypatch.setattr("workers.broker._RETRIES", 0)
    monkeypatch.setenv("FLEET_BROKER", "redis://user:secret@127.0.0.1:24999/0")
    begun = time.monotonic()
    ran = run_command(status, "r")
    assert ran.code == 3
    assert "secret" not in ran.err
    assert "is Redis up, and does FLEET_BROKER name it?" in ran.err
    assert time.monotonic() - begun < 20


def test_a_store_that_is_away_ends_with_4(client: "redis.Redis", run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ENDPOINT_URL": "http://127.0.0.1:24998", "AWS_ACCESS_KEY_ID": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("FLEET_STORE", "s3://bucket/prefix")
    assert run_command(status, "r").code == 4


def test_runs_joins_the_store_with_redis(store: ObjectStore, run_command: Run, client: "redis.Redis") -> None:
    ran = run_command(runs)
    assert (ran.code, "no runs in" in ran.out) == (0, True)
    write_run(store, run="r")
    write_run(store, run="forgotten")
    store.put("runs/broken/manifest.json", b"{}")
    store.put("runs/begun/inputs/00000000.jsonl.zst", b"x")
    under_way(client)
    client.hset(KEYS.state, mapping={"total": 20})
    listed = {one["run"]: one for one in run_command(runs, "--json").json["runs"]}
    assert set(listed) == {"r", "forgotten", "broken", "begun"}
    assert (listed["r"]["status"], listed["r"]["completed"], listed["r"]["created_at"]) == ("running", 120, CREATED_AT)
    assert (listed["forgotten"]["status"], listed["forgotten"]["completed"], listed["forgotten"]["total"]) == (None, None, 20)
    text = run_command(runs).out
    assert (
        "forgotten: 20 prompts, created 2026-05-28 20:26 UTC, model m; Redis does not know it (any more): "
        "`producer audit forgotten`, `producer resume forgotten`" in text
    )
    assert "broken: runs/broken/manifest.json: found" in text
    assert "begun: no manifest, so it is not wholly enqueued" in text
    assert "r: running, 20 prompts, 120 completed, 6 failed" in text


def test_a_watch_without_a_terminal_prints_what_changed_until_the_end(
    client: "redis.Redis", run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way(client)
    looks = []

    def sleep(_: float) -> None:
        looks.append(1)
        client.hset(KEYS.state, "status", "paused" if len(looks) == 1 else "complete")

    monkeypatch.setattr("producer.status.time.sleep", sleep)
    told = run_command(status, "r", "--watch").out
    first, second, *last = told.splitlines()
    assert first[9:].startswith("r: running, 126 of 1,000 prompts, 6 failed; 2.")
    assert first.endswith("; old@h gone")
    assert second[9:].startswith("r: paused, 126 of 1,000 prompts, 6 failed; ")
    assert last[0] == "run r: complete, model m\\x1b[31m"
    assert last[-1] == "next: `producer failures r`, `producer audit r`, `producer collect r -o completions.jsonl`"


def test_a_watch_without_a_terminal_outlives_redis_and_prints_progress_now_and_then(
    client: "redis.Redis", run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way(client)
    looks: list[int] = []
    clock = [0.0]

    def sleep(_: float) -> None:
        looks.append(1)
        clock[0] += 3
        client.hincrby(KEYS.counts, "completed", 1)
        if len(looks) == 8:
            client.hset(KEYS.state, "status", "complete")

    read = read_run

    def reading(asked: "redis.Redis", run: str) -> object:
        if len(looks) == 6:
            raise redis.ConnectionError("refused")
        return read(asked, run)

    monkeypatch.setattr("producer.status.time.sleep", sleep)
    monkeypatch.setattr("producer.status.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("producer.status.read_run", reading)
    told = run_command(status, "r", "--watch").out.splitlines()
    lines = [line for line in told if line[2:3] == ":"]
    assert (
        [line[9:].split(";")[0] for line in lines]
        == [
            "r: running, 126 of 1,000 prompts, 6 failed",
            "r: running, 130 of 1,000 prompts, 6 failed",  # ten seconds later
            lines[2][9:].split(";")[0],
            "r: running, 133 of 1,000 prompts, 6 failed",  # the first look after
        ]
    )
    assert lines[2].endswith("is Redis up, and does FLEET_BROKER name it?; trying again")


def test_a_worker_that_is_not_heard_of_is_silent_before_its_key_ends(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    client.hset(names.worker_key("gpu0@h"), "beat_s", 3)
    client.pexpire(names.worker_key("gpu0@h"), round((names.WORKER_TTL_S - 8.5) * 1000))
    (known, _) = run_command(status, "r", "--json").json["workers"]
    assert (known["state"], known["seen_s_ago"]) == ("running", pytest.approx(8.5, abs=0.4))
    client.pexpire(names.worker_key("gpu0@h"), round((names.WORKER_TTL_S - 9.6) * 1000))
    assert run_command(status, "r", "--json").json["workers"][0]["state"] == "silent"
    text = run_command(status, "r").out
    assert "gpu0@h: silent, last heard of 10 s ago; of this run 100 completed, 6 failed" in text
    assert "worker    none is up; beside each engine: `ENGINE_URL=http://… celery -A workers worker -n gpu0@%h`" in text


def test_a_run_whose_last_batches_are_parked_stands_and_a_watch_of_it_ends(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    client.hset(KEYS.counts, "batches", 14)
    client.hset(KEYS.parked, mapping={"00000003": "cause"})
    assert run_command(status, "r", "--json").json["stands"] is False
    client.hset(KEYS.parked, mapping={"00000004": "cause"})
    assert run_command(status, "r", "--json").json["stands"] is True
    told = run_command(status, "r", "--watch").out
    assert told.startswith("run r: running, and stands, model")
    assert "parked    2 batches waiting for a person, all that is left; then `producer resume r`" in told
    assert "none is up" not in told


def test_the_screen_shows_every_worker(client: "redis.Redis") -> None:
    under_way(client)
    client.hset(names.worker_key("gpu0@h"), "cause", "[bold]not markup\x1b[0m")
    state = read_run(client, "r")
    assert state is not None
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen(state, document_of(state)))
    text = console.export_text()
    assert "old@h" in text
    assert "[bold]not markup\\x1b[0m" in text


def test_batches_that_nobody_was_told_of_are_told_with_the_next_step(client: "redis.Redis", run_command: Run) -> None:
    under_way(client)
    assert "next: 16 batches never pushed, and no producer at it: `producer resume r`" in run_command(status, "r").out
    for number in range(14):
        client.setbit(KEYS.pushed, number, 1)
    client.setbit(KEYS.done, 14, 1)
    assert run_command(status, "r", "--json").json["batches_unpushed"] == 1
    client.hset(KEYS.parked, "00000015", "why")
    assert run_command(status, "r", "--json").json["batches_unpushed"] == 0
    assert "never pushed" not in run_command(status, "r").out
