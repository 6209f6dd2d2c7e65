"""Each alarm from the figures that raise it, with what, which and why; and none from a healthy fleet."""

from typing import Any

import pytest

from ops.aggregator.alarms import alarms
from ops.aggregator.causes import Bottleneck
from ops.aggregator.history import History
from workers.progress.run_state import RunState, WorkerState

WORKER = {
    **{"state": "running", "model": "m", "engine_version": "0.5.11", "flags_digest": "f", "host": "h"},
    **{"completed": "0", "failed": "0"},
}
NO_RUN: dict[str, Any] = {
    **{"run": "r", "now_s": 100.0, "status": "running", "total": 100, "batches": 10, "rejected": 0, "priority": 4},
    **{"created_at": 0.0, "finished_at": None, "model": None, "completed": 50, "failed": 0, "prompt_tokens": 0},
    **{"completion_tokens": 0, "batches_done": 5, "shards": 5, "shard_bytes": 0, "reasons": {}, "flags": {}, "samples": ()},
    **{"in_flight": 4, "leased_batches": 1, "parked": {}},
}
UP = WorkerState("gpu0@h", "running", 50, 0)


def workers(**changes: dict[str, str]) -> dict[str, dict[str, str]]:
    """Two healthy workers, and what differs."""
    base = {name: WORKER | {"engine_url": f"http://h:{name}"} for name in ("gpu0", "gpu1")}
    return {name: told | changes.get(name, {}) for name, told in base.items()}


def raised(
    told: dict[str, dict[str, str]] | None = None,
    *,
    later: dict[str, dict[str, str]] | None = None,
    bottlenecks: dict[str, Bottleneck] | None = None,
    rate: float | None = 1.0,
    memory: tuple[int, int, str] = (1, 0, "noeviction"),
    **run: Any,
) -> list[tuple[str, str, str]]:
    told = workers() if told is None else told
    history = History()
    history.add(0.0, told)
    history.add(10.0, later or told)
    state = RunState(**{**NO_RUN, "workers": (UP,), **run})
    found = alarms(told, bottlenecks or {}, history, [(state, {"rate_per_sec": rate})], memory)
    return [(alarm.kind, alarm.what, alarm.sentence) for alarm in found]


def test_a_healthy_fleet_raises_none() -> None:
    assert raised() == []
    assert raised({}, workers=(), status="complete", rate=None) == []


@pytest.mark.parametrize(("kind", "alarming"), [("engine_sick", True), ("client_starved", True), ("tail", False)])
def test_a_bottleneck_that_somebody_can_mend_is_one(kind: Any, *, alarming: bool) -> None:
    found = raised(bottlenecks={"gpu1": Bottleneck(kind, "why")})
    assert found == ([(kind, "gpu1", "why")] if alarming else [])


@pytest.mark.parametrize(
    ("completed", "failed", "alarming"), [("60", "40", True), ("0", "20", True), ("60", "19", False), ("380", "20", False)]
)
def test_a_burst_of_failures_is_one_and_a_handful_is_none(completed: str, failed: str, *, alarming: bool) -> None:
    found = raised(later=workers(gpu0={"completed": completed, "failed": failed}))
    assert [kind for kind, _, _ in found] == (["failure_burst"] if alarming else [])
    if alarming:
        total = int(completed) + int(failed)
        assert found[0][2] == f"{failed} of its last {total} prompts failed; `producer failures` groups them"


def test_a_draft_model_that_is_never_right() -> None:
    (found,) = raised(workers(gpu0={"engine_accept_length": "1.0"}, gpu1={"engine_accept_length": "2.4"}))
    assert found == ("no_speculation", "gpu0", "accept length 1.00: the draft model is never right")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "other"}, "2 models: gpu1 differ from the others"),
        ({"engine_version": "0.5.23"}, "2 versions of SGLang: gpu1 differ from the others"),
        ({"flags_digest": "g"}, "2 sets of engine flags: gpu1 differ from the others"),
        ({"engine_url": "http://h:gpu0"}, "gpu0, gpu1 use one engine, http://h:gpu0: give each engine one worker"),
    ],
)
def test_engines_that_differ_or_are_shared(changes: dict[str, str], sentence: str) -> None:
    ((_, what, told),) = raised(workers(gpu1=changes))
    assert (what, told) == ("fleet", sentence)


def test_a_loopback_engine_of_another_host_is_another_engine() -> None:
    assert raised(workers(gpu1={"engine_url": "http://h:gpu0", "host": "elsewhere"})) == []


@pytest.mark.parametrize(
    ("expected", "run"),
    [
        (("parked", "r", "1 batches wait for a person; `producer status r`"), {"parked": {"00000001": "why"}}),
        (("no_workers", "r", "no worker is up"), {"workers": (WorkerState("gpu0@h", "gone", 5, 0),)}),
        (("no_progress", "r", "nothing was finished for longer than its pace explains"), {"rate": 0.0}),
    ],
)
def test_runs_that_need_somebody(expected: tuple[str, str, str], run: dict[str, Any]) -> None:
    assert raised(**run) == [expected]


def test_a_worker_that_fell_silent() -> None:
    silent = WorkerState("gpu1@h", "silent", 5, 0, seen_s_ago=14.2)
    assert raised(workers=(UP, silent)) == [("worker_missing", "gpu1@h", "silent for 14 s with run r under way")]


def test_a_redis_that_is_nearly_full() -> None:
    assert raised(memory=(900_000_000, 1_000_000_000, "noeviction")) == [
        ("redis_full", "Redis", "90% of its maxmemory of 1,000 MB are used; it refuses writes at 100 %")
    ]
    assert raised(memory=(800_000_000, 1_000_000_000, "noeviction")) == []
    assert raised(memory=(900_000_000, 0, "noeviction")) == [], "no limit"


def test_a_redis_that_evicts() -> None:
    assert raised(memory=(1, 0, "allkeys-lru")) == [
        ("redis_evicts", "Redis", "maxmemory-policy is allkeys-lru, expected noeviction: lost keys are wrong counters")
    ]
