"""Failed prompts generated again: which are taken, and that status, audit and collect agree at every moment."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from producer.audit import audit
from producer.collect.command import collect
from producer.failures.command import failures
from producer.repairs import find_repairs
from producer.requeue import overridden, requeue
from producer.resume import resume
from producer.runs import runs
from producer.status import status
from tests.integration.producer_read.conftest import Run
from tests.integration.producer_read.stored_run import StoredRun, outcome, write_run
from workers.contract import layout
from workers.contract.schema import (
    Answer,
    Completion,
    Prompt,
    Sampling,
    ShardCounts,
    decode_prompts,
    encode_manifest,
    encode_shard,
    shard_digest,
)
from workers.object_store import ObjectStore

pytestmark = pytest.mark.integration

FAILED = ["p6", "p13"]
"""Of 20 rows, those that `outcome` fails."""


@pytest.fixture
def stored(store: ObjectStore, run_command: Run) -> StoredRun:
    made = write_run(store)
    assert run_command(resume, "r").code == 0
    return made


def prompts_of(store: ObjectStore, run: str) -> list[Prompt]:
    return [
        prompt
        for info in store.list(layout.inputs_prefix(run))
        for prompt in decode_prompts(info.key, store.get(info.key) or b"")
    ]


def good(index: int, prompt: Prompt) -> Completion:
    template = outcome(0, prompt)
    return msgspec.structs.replace(
        template, index=index, status="ok", reason=None, message=None, rejected=None, answer=Answer(content="better")
    )


def answer_repair(store: ObjectStore, run: str, rows: list[Completion]) -> None:
    """Write the only output shard of a repair as a worker does."""
    key = layout.completions_shard(run, layout.batch_label(0))
    body = encode_shard(rows)
    assert store.put_new(key, body, ShardCounts.of(rows).to_metadata(body))


def figures(run_command: Run) -> tuple[Any, Any]:
    """What status says and what audit says."""
    told, proven = run_command(status, "r", "--json").json, run_command(audit, "r", "--json").json
    return (
        {name: told[name] for name in ("total", "completed", "failed", "pending", "status", "failures")},
        {name: proven[name] for name in ("rows", "ok", "failed", "missing", "clean")},
    )


def test_failed_prompts_wait_in_a_repair_and_their_new_outcomes_replace_the_old(
    stored: StoredRun, store: ObjectStore, run_command: Run, tmp_path: Path
) -> None:
    done = run_command(requeue, "r", "--json")
    assert (done.code, done.json) == (
        0,
        {
            "run": "r",
            "repair": "r~r01",
            "prompts": 2,
            "reasons": {"empty": 2},
            "batches": 1,
            "pushed": 1,
            "dry_run": False,
        },
    )
    assert [prompt.id for prompt in prompts_of(store, "r~r01")] == FAILED
    told, proven = figures(run_command)
    assert told == {"total": 20, "completed": 18, "failed": 0, "pending": 2, "status": "running", "failures": {}}
    assert proven == {"rows": 20, "ok": 18, "failed": 0, "missing": 2, "clean": False}
    refused = run_command(collect, "r", "-o", str(tmp_path / "refused.jsonl"))
    assert (refused.code, "2 of 20 prompts have no outcome yet" in refused.err) == (1, True)
    assert run_command(failures, "r", "--json").json["failed"] == 0, "what waits in a repair has not failed"
    partial = run_command(collect, "r", "-o", str(tmp_path / "partial.jsonl"), "--partial", "--json")
    assert (partial.json["failed"], partial.json["pending"], partial.json["missing"]) == (2, 2, 0)

    first, second = prompts_of(store, "r~r01")
    answer_repair(store, "r~r01", [good(0, first), outcome(1, second)])
    assert run_command(resume, "r", "--rebuild").code == 0
    told, proven = figures(run_command)
    assert told == {
        "total": 20,
        "completed": 19,
        "failed": 1,
        "pending": 0,
        "status": "complete",
        "failures": {"empty": 1},
    }
    assert proven == {"rows": 20, "ok": 19, "failed": 1, "missing": 0, "clean": True}
    out = tmp_path / "rows.jsonl"
    assert run_command(collect, "r", "-o", str(out)).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(20))
    assert (rows[6]["content"], rows[6]["provenance"]["batch"], rows[6]["provenance"]["run"]) == ("better", "r01-00000000", "r")
    assert (rows[13]["status"], rows[13]["provenance"]["batch"]) == ("failed", "r01-00000000")
    assert rows[0]["provenance"]["batch"] == "00000000"


def test_a_second_repair_takes_only_what_still_fails_and_nothing_twice(
    stored: StoredRun, store: ObjectStore, run_command: Run
) -> None:
    run_command(requeue, "r")
    again = run_command(requeue, "r")
    assert again.out == "run r: no prompt failed that is not under way already\n"
    first, second = prompts_of(store, "r~r01")
    answer_repair(store, "r~r01", [good(0, first), outcome(1, second)])
    told = run_command(requeue, "r", "--set", "max_tokens=4096", "--set", "temperature=0.5")
    assert told.out == (
        "run r: 1 prompt to be generated again (empty 1), in 1 batch as repair r~r02; `producer status r` follows them\n"
    )
    assert [prompt.id for prompt in prompts_of(store, "r~r02")] == ["p13"]
    first_repair, second_repair = find_repairs(store, stored.manifest)
    assert first_repair.sampling == Sampling(max_tokens=100)
    assert second_repair.sampling == Sampling(max_tokens=4096, temperature=0.5)
    answer_repair(store, "r~r02", [good(0, second)])
    assert run_command(resume, "r", "--rebuild").code == 0
    failing = run_command(failures, "r", "--json").json
    assert (failing["outcomes"], failing["failed"], failing["groups"]) == (20, 0, [])
    told_now, proven = figures(run_command)
    assert (told_now["completed"], told_now["failed"], told_now["failures"]) == (20, 0, {})
    assert (proven["ok"], proven["clean"]) == (20, True)
    listed = run_command(runs, "--json").json["runs"]
    assert [(one["run"], one["status"], one["completed"], one["failed"]) for one in listed] == [("r", "complete", 20, 0)]


def test_a_dry_run_counts_and_writes_nothing(stored: StoredRun, store: ObjectStore, run_command: Run) -> None:
    told = run_command(requeue, "r", "--dry-run")
    assert told.out == "run r: 2 prompts would be generated again (empty 2)\n"
    assert not list(store.list(layout.repairs_prefix("r")))
    none = run_command(requeue, "r", "--reason", "nan", "--reason", "timeout")
    assert none.out == "run r: no prompt with reason nan or timeout that is not under way already\n"


def test_what_an_interrupted_requeue_left_is_no_repair_and_is_written_over(
    stored: StoredRun, store: ObjectStore, run_command: Run
) -> None:
    for number in range(3):
        store.put_new(layout.input_shard("r~r01", layout.batch_label(number)), b"rubbish")
    assert figures(run_command)[1]["clean"]
    assert run_command(requeue, "r", "--json").json["batches"] == 1
    assert [prompt.id for prompt in prompts_of(store, "r~r01")] == FAILED


def test_a_repair_never_takes_the_number_of_an_earlier_runs_completions(
    stored: StoredRun, store: ObjectStore, run_command: Run
) -> None:
    store.put_new(layout.completions_shard("r~r04", layout.batch_label(0)), b"of another day")
    assert run_command(requeue, "r", "--json").json["repair"] == "r~r05"
    assert figures(run_command)[0]["pending"] == 2
    assert [repair.run for repair in find_repairs(store, stored.manifest)] == ["r~r05"]


def test_a_requeue_that_was_killed_before_it_pushed_is_finished_by_the_next(
    stored: StoredRun, store: ObjectStore, run_command: Run, client: "redis.Redis"
) -> None:
    run_command(requeue, "r")
    for key in (*client.scan_iter("fleet.batches*"), *client.scan_iter("fleet:{r~r01}*")):
        client.delete(key)
    told = run_command(requeue, "r")
    assert told.out == ("run r: no prompt failed that is not under way already; 1 batch of an earlier requeue pushed\n")
    assert figures(run_command)[0]["pending"] == 2


def test_flushall_and_resume_bring_the_repairs_back_too(stored: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    run_command(requeue, "r")
    client.flushall()
    done = run_command(resume, "r", "--json")
    assert [one["run"] for one in done.json["repairs"]] == ["r~r01"]
    assert done.json["repairs"][0]["pushed"] == 1
    assert figures(run_command)[0] == {
        "total": 20,
        "completed": 18,
        "failed": 0,
        "pending": 2,
        "status": "running",
        "failures": {},
    }


def test_a_repair_of_an_earlier_run_of_the_same_name_does_not_count(
    stored: StoredRun, store: ObjectStore, run_command: Run
) -> None:
    run_command(requeue, "r")
    first, second = prompts_of(store, "r~r01")
    answer_repair(store, "r~r01", [good(0, first), good(1, second)])
    later = msgspec.structs.replace(stored.manifest, created_at=stored.manifest.created_at + 1)
    store.put(layout.manifest("r"), encode_manifest(later))
    assert find_repairs(store, later) == []
    assert run_command(audit, "r", "--json").json["failed"] == 2


def test_a_repair_with_rows_of_no_prompt_is_not_clean(stored: StoredRun, store: ObjectStore, run_command: Run) -> None:
    run_command(requeue, "r")
    (repair,) = find_repairs(store, stored.manifest)
    stranger = Prompt(id="x", row=99, text="?")
    body = encode_shard([*prompts_of(store, repair.run), stranger])
    store.put(layout.input_shard(repair.run, layout.batch_label(0)), body)
    store.put(
        layout.manifest(repair.run),
        encode_manifest(msgspec.structs.replace(repair, prompts=3, shard_digests=shard_digest(body))),
    )
    answer_repair(store, repair.run, [good(index, prompt) for index, prompt in enumerate(prompts_of(store, repair.run))])
    told = run_command(audit, "r", "--json").json
    assert not told["clean"]
    assert told["problems"] == ["r~r01: 1 of its prompts are none of the run's; `producer requeue` made no such repair"]
    assert told["ok"] == 20


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ("max_tokens", "no value"),
        ("tokens=5", "no such value"),
        ("max_tokens=many", "found 'many', expected int"),
        ("max_tokens=0", "max_tokens is 0, expected at least 1, below 2^31"),
        ("temperature=-1", "temperature is -1.0, expected 0 or more, and finite"),
        ("thinking=perhaps", "found 'perhaps', expected bool"),
    ],
)
def test_an_override_that_cannot_be_sent_is_refused(stored: StoredRun, run_command: Run, given: str, cause: str) -> None:
    ran = run_command(requeue, "r", "--set", given)
    assert ran.code == 2
    assert ran.err.startswith(f"--set {given}: {cause}")
    assert "as in --set max_tokens=4096" in ran.err


def test_rows_keep_their_own_sampling_but_for_the_override(store: ObjectStore) -> None:
    made = write_run(store)
    own = Sampling(max_tokens=7, temperature=0.1)
    prompt = msgspec.structs.replace(made.prompts[0][0], sampling=own)
    assert overridden(prompt, Sampling(max_tokens=99)).sampling == Sampling(max_tokens=99, temperature=0.1)
    assert overridden(made.prompts[0][0], Sampling(max_tokens=99)).sampling is None
