"""What `producer failures` tells of a run, on both stores."""

import json
import tracemalloc
from pathlib import Path

import msgspec
import pytest
import redis

from producer.failures import command, reading
from producer.failures.command import failures
from producer.failures.groups import Wanted
from tests.integration.producer_read.conftest import Run
from tests.integration.producer_read.stored_run import StoredRun, write_run
from workers.contract.names import RunKeys
from workers.contract.schema import Provenance, encode_shard
from workers.contract.settings import FleetSettings
from workers.object_store import ObjectStore
from workers.store import open_store

pytestmark = pytest.mark.integration

KEYS = ["run", "outcomes", "failed", "shards", "baseline_rows", "alpha", "groups", "parked", "problems"]
GROUP_KEYS = ["kind", "name", "count", "share", "meaning", "remedy", "messages", "pairs_examined", "shared", "examples"]
EXAMPLE_KEYS = ["id", "row", "sample", "reason", "message", "worker", "finish_reason", "batch"]


@pytest.fixture
def stored(store: ObjectStore) -> StoredRun:
    return write_run(store)


def test_the_document_of_a_run_with_failures(stored: StoredRun, run_command: Run) -> None:
    ran = run_command(failures, "r", "--json")
    told = ran.json
    assert (ran.code, list(told)) == (0, KEYS)
    assert (told["run"], told["outcomes"], told["failed"], told["baseline_rows"]) == ("r", 20, 2, 20)
    assert told["shards"] == {"batches": 5, "stored": 5, "read": 5, "unreadable": 0}
    [group] = told["groups"]
    assert list(group) == GROUP_KEYS
    assert (group["kind"], group["name"], group["count"], group["share"]) == ("reason", "empty", 2, 0.1)
    assert group["remedy"] == "check chat template, stop strings and reasoning parser"
    assert (group["messages"], group["shared"]) == ({"no text": 2}, [])
    assert list(group["examples"][0]) == EXAMPLE_KEYS
    assert [one["id"] for one in group["examples"]] == ["p6", "p13"]
    assert told["parked"] == {"count": 0, "batches": [], "next": "producer resume r"}


def test_for_people(stored: StoredRun, run_command: Run) -> None:
    text = run_command(failures, "r").out
    assert "run r: 2 of 20 outcomes failed\n" in text
    assert "held against 20 rows; what is named has p < 0.01 after Bonferroni's correction" in text
    assert "empty: 2 (10.00%); HTTP 200 with nothing visible\n" in text
    assert "what to do: check chat template, stop strings and reasoning parser\n" in text
    assert "message: no text (2 of 2)\n" in text
    assert "they share nothing beyond chance" in text
    assert "question" not in text
    assert "p6" in text


def few(monkeypatch: pytest.MonkeyPatch, shards: int) -> None:
    for module in (reading, command):
        monkeypatch.setattr(module, "BASELINE_SHARDS", shards)


def planted(store: ObjectStore) -> None:
    """640 rows in 80 batches; what gpu7 does in every fifth fails half the time, and one row elsewhere."""
    stored = write_run(store, rows=640, batch_size=8)
    for number in range(80):
        worker = "gpu7@bad" if number % 5 == 0 else f"gpu{number % 5}@good"
        rows = []
        for row in stored.outcomes(number):
            told = Provenance(worker=worker, model="m", started_at=row.provenance.started_at)
            failing = worker == "gpu7@bad" and row.index % 2 == 0
            change: dict[str, object] = {"status": "failed", "reason": "nan", "message": f"row {row.row}", "answer": None}
            keep: dict[str, object] = {"status": "ok", "reason": None, "message": None, "answer": row.answer or row.rejected}
            rows.append(msgspec.structs.replace(row, provenance=told, rejected=None, flags=(), **(change if failing else keep)))
        stored.rewrite(number, rows)


def test_the_worker_that_fails_is_named(store: ObjectStore, run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(store)
    few(monkeypatch, 20)
    told = run_command(failures, "r", "--json").json
    assert (told["baseline_rows"], told["failed"], told["outcomes"]) == (20, 64, 640)
    assert told["shards"]["read"] == 32  # sixteen with failures, of which four are in the sample of twenty
    [group] = told["groups"]
    assert group["messages"] == {"row #": 64}
    [named] = group["shared"]
    assert (named["trait"], named["value"], named["failing"], named["of_failing"]) == ("worker", "gpu7@bad", 64, 64)
    assert named["lift"] > 3
    assert named["p_value"] < 1e-4
    text = run_command(failures, "r").out
    assert "held against 20 rows, one of each of as many evenly spaced shards; what is named" in text
    assert "gpu7@bad" in text
    assert "64 of 64" in text


def test_bodies_of_shards_without_failures_are_not_read(
    stored: StoredRun, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch, 1)
    for number in (2, 4):  # neither holds a failure
        stored.rewrite_raw(number, b"never read")
    told = run_command(failures, "r", "--json").json
    assert (told["shards"]["read"], told["shards"]["unreadable"], told["outcomes"]) == (3, 0, 20)
    assert [group["count"] for group in told["groups"]] == [2]


def test_a_shard_without_counts_is_read(stored: StoredRun, run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, 1)
    stored.store.put(stored.output_key(1), encode_shard(stored.outcomes(1)))
    assert run_command(failures, "r", "--json").json["failed"] == 2


def test_a_shard_that_cannot_be_read_is_told(stored: StoredRun, run_command: Run) -> None:
    stored.rewrite_raw(1, b"?")
    told = run_command(failures, "r", "--json").json
    assert (told["shards"]["unreadable"], told["outcomes"], told["failed"]) == (1, 16, 1)
    assert stored.output_key(1) in told["problems"][0]
    assert "1 shard that cannot be read left out; next: `producer audit r`" in run_command(failures, "r").out


def test_flags_and_a_reason(stored: StoredRun, run_command: Run) -> None:
    told = run_command(failures, "r", "--json", "--flags", "--examples", "1").json
    assert [(one["kind"], one["name"], one["count"]) for one in told["groups"]] == [
        ("reason", "empty", 2),
        ("flag", "truncated", 4),
    ]
    assert [len(one["examples"]) for one in told["groups"]] == [1, 1]
    assert "flag truncated: 4 (20.00%)" in run_command(failures, "r", "--flags").out
    assert run_command(failures, "r", "--reason", "empty", "--json").json["groups"][0]["count"] == 2
    assert run_command(failures, "r", "--reason", "nan").out == "run r: no failures with reason nan among 20 outcomes\n"
    assert run_command(failures, "r", "--reason", "nonsense").code == 2


def test_text_is_shown_on_request_only(stored: StoredRun, run_command: Run) -> None:
    assert "question 6" not in run_command(failures, "r", "--json").out
    example = run_command(failures, "r", "--json", "--show-text").json["groups"][0]["examples"][0]
    assert example["prompt"] == {"messages": [{"role": "user", "content": "question 6"}]}
    assert example["text"] == ""
    assert 'p6 asked: {"messages":[{"role":"user","content":"question 6"}]}' in run_command(failures, "r", "--show-text").out


def test_failing_ids_for_scripts(stored: StoredRun, run_command: Run, tmp_path: Path) -> None:
    out = tmp_path / "ids.jsonl"
    assert run_command(failures, "r", "--ids", str(out)).code == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": f"p{row}", "row": row, "sample": 0, "reason": "empty"} for row in (6, 13)
    ]
    ran = run_command(failures, "r", "--ids", str(out))
    assert (ran.code, ran.err) == (2, f"{out} exists; take another name, or replace it with --force")
    assert run_command(failures, "r", "--ids", str(out), "--force").code == 0
    ran = run_command(failures, "r", "--ids", "-", "--json")
    assert len(ran.out.splitlines()) == 2
    assert json.loads(ran.err)["failed"] == 2


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    peaks = []
    for batches in (100, 600):
        settings = FleetSettings(broker="redis://unused", store=f"file://{tmp_path}/{batches}")
        stored = write_run(open_store(settings), rows=batches * 16, batch_size=16)
        tracemalloc.start()
        try:
            assert command.examine_run(stored.store, stored.manifest, Wanted()).read == batches
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0] + 200_000


def test_no_failures_is_said(store: ObjectStore, run_command: Run) -> None:
    write_run(store, rows=12, batch_size=6, answered=1)
    ran = run_command(failures, "r")
    assert (ran.code, ran.out) == (0, "run r: no failures among 6 outcomes; 1 batch without an outcome yet\n")


def test_an_unknown_run_is_named(stored: StoredRun, run_command: Run) -> None:
    ran = run_command(failures, "nobody")
    assert (ran.code, ran.err) == (2, f"no run nobody in {stored.store.url}; `producer runs` lists those that are there")


def test_parked_batches_are_listed(stored: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    client.hset(RunKeys("r").parked, "00000003", "found nothing\x1b[2J")
    parked = run_command(failures, "r", "--json").json["parked"]
    assert parked["batches"] == [{"batch": "00000003", "cause": "found nothing\x1b[2J"}]
    text = run_command(failures, "r").out
    assert "1 batch given up, to be looked at by a person; next: `producer resume r`\n  00000003: found nothing\\x1b[2J" in text
    assert "\x1b" not in text


def test_without_redis_parked_batches_are_not_known(
    stored: StoredRun, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.broker._RETRIES", 0)
    monkeypatch.setenv("FLEET_BROKER", "redis://127.0.0.1:24999/0")
    ran = run_command(failures, "r", "--json")
    assert (ran.code, ran.json["parked"], ran.json["failed"]) == (0, None, 2)
    assert "batches that were given up: not known, Redis did not answer\n" in run_command(failures, "r").out
