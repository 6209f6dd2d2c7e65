"""One bottleneck a worker, each from the figures that show it, and none from figures that are not there."""

from typing import Any

import pytest

from ops.aggregator.causes import Bottleneck, Kind, WorkerFigures, bottleneck

FULL = {"state": "running", "cause": "", "in_flight": 20, "slots": 20, "unstarted": 30, "running": 16, "running_limit": 16}


def bounded_by(*, queued: int = 50, paused: bool = False, **changes: Any) -> Bottleneck:
    return bottleneck(WorkerFigures(**{**FULL, **changes}), queued_batches=queued, all_paused=paused)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("engine_sick", {"state": "sick", "cause": "no token for 60 s"}),
        ("engine_sick", {"state": "starting", "cause": "engine http://h: no connection"}),
        ("engine_sick", {"state": "silent"}),
        ("store_slow", {"state": "waiting", "cause": "store s3://b: 503"}),
        ("draining", {"state": "draining"}),
        ("paused", {"paused": True, "in_flight": 0, "unstarted": 0, "queued": 0}),
        ("paused", {"paused": True, "in_flight": 3}),
        ("idle", {"in_flight": 0, "unstarted": 0, "queued": 0}),
        ("tail", {"in_flight": 7, "unstarted": 0, "queued": 0}),
        ("client_starved", {"in_flight": 7, "unstarted": 0}),
        ("client_starved", {"in_flight": 7, "queued": 0}),
        ("kv_bound", {"kv_usage": 0.97}),
        ("kv_bound", {"kv_usage": 0.6, "retractions_per_s": 0.2}),
        ("compute_bound", {"gpu_utilization": 0.99}),
        ("compute_bound", {"running": 9, "gpu_utilization": 0.99}),
        ("slot_bound", {"queued_at_engine": 4, "kv_usage": 0.3}),
        ("slot_bound", {"gpu_utilization": 0.5}),
        ("unknown", {"running": None}),
        ("unknown", {"running_limit": None}),
    ],
)
def test_each_bottleneck_is_named(kind: Kind, changes: dict[str, Any]) -> None:
    assert bounded_by(**changes).kind == kind


def test_the_sentence_tells_the_figures() -> None:
    assert bounded_by(queued_at_engine=4).sentence == "16 of 16 requests run, 4 wait at the engine: its running limit binds"
    assert bounded_by(kv_usage=0.97, retractions_per_s=1).sentence == (
        "16 of 16 requests run, KV cache 97% full, requests are retracted"
    )
    assert bounded_by(state="sick", cause="refused").sentence == "sick: refused"
    starved = bounded_by(in_flight=7, unstarted=0).sentence
    assert starved.startswith("7 of 20 slots busy with work at hand (50 batches queued, 0 prompts at hand): store, Redis or")


@pytest.mark.parametrize(
    ("changes", "alarming"),
    [({"state": "sick"}, True), ({"in_flight": 7}, True), ({"state": "waiting"}, True), ({}, False), ({"kv_usage": 1}, False)],
)
def test_only_what_somebody_can_mend_is_an_alarm(changes: dict[str, Any], *, alarming: bool) -> None:
    assert bounded_by(**changes).alarming is alarming


def test_figures_come_from_a_workers_hash_and_what_is_absent_is_none() -> None:
    told = {
        "state": "running",
        "in_flight": "3",
        "slots": "20",
        "unstarted": "1",
        "engine_running": "2",
        "engine_kv_usage": "0.5",
    }
    found = WorkerFigures.of(told)
    assert (found.in_flight, found.slots, found.running, found.kv_usage) == (3, 20, 2, 0.5)
    assert (found.running_limit, found.gpu_utilization, found.queued_at_engine) == (None, None, None)
    assert WorkerFigures.of({**told, "beat_s": "3", "seen_s_ago": "9.5"}).state == "silent"
