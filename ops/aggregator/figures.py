"""The whole fleet as one document: what the page shows, what scripts read, what Prometheus scrapes. Pure.

A figure that cannot be known is null. Run figures are those of `producer status`, from the same functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import msgspec

from ops.aggregator.alarms import alarms
from ops.aggregator.backtest import Prediction, judged
from ops.aggregator.causes import Bottleneck, WorkerFigures, bottleneck
from ops.aggregator.cost import cost_of
from ops.aggregator.history import History, summed
from ops.aggregator.look import Look
from workers.progress.figures import Document, document_of, elapsed_s
from workers.progress.run_state import RunState, state_of

GAUGES = (
    *("engine_running", "engine_queued", "engine_running_limit", "engine_kv_usage", "engine_kv_tokens", "engine_state_usage"),
    *("engine_accept_length", "engine_accept_rate", "gpu_utilization", "gpu_power_w", "gpu_memory_used_bytes"),
    *("gpu_memory_total_bytes", "gpu_temperature_c", "loop_lag_s", "store_write_s", "in_flight", "unstarted", "slots"),
    *("open_batches", "unwritten", "completed", "failed", "seen_s_ago"),
)
NAMES = ("state", "cause", "model", "engine_version", "engine_url", "flags_digest", "host")


def fleet_document(look: Look, history: History, usd_per_hour: float | None) -> Document:
    """Everything, as of one look.

    Args:
        look: What Redis said.
        history: Readings of the workers' counters, this look included.
        usd_per_hour: Of the whole fleet; None tells no costs.
    """
    all_paused = _all_paused(look.runs)
    bottlenecks = {}
    for name, told in look.workers.items():
        figures = WorkerFigures.of(told, history.rate(name, "engine_retracted_total"))
        bottlenecks[name] = bottleneck(figures, queued_batches=look.queued, all_paused=all_paused)
    busy = busy_share(look.workers.values())
    runs = [(state, run_document(state, usd_per_hour, busy, look.predictions.get(state.run, {}))) for state in look.runs]
    found = alarms(look.workers, bottlenecks, history, runs, (look.memory_bytes, look.memory_limit_bytes, look.memory_policy))
    return {
        "at": round(look.at_s, 3),
        "queued_batches": look.queued,
        "redis_memory_bytes": look.memory_bytes,
        "redis_memory_limit_bytes": look.memory_limit_bytes or None,
        "fleet": {
            "workers": len(look.workers),
            "slots": sum(int(told.get("slots") or 0) for told in look.workers.values()),
            "in_flight": sum(int(told.get("in_flight") or 0) for told in look.workers.values()),
            "busy_share": busy,
            "prompts_per_sec": summed(_prompts_per_s(history, name) for name in look.workers),
            "decoded_tokens_per_sec": summed(history.rate(name, "engine_decoded_total") for name in look.workers),
            "accept_length": accept_length(look.workers, history),
        },
        "workers": [worker_document(name, told, history, bottlenecks[name]) for name, told in sorted(look.workers.items())],
        "runs": [document for _, document in runs],
        "alarms": [asdict(alarm) for alarm in found],
    }


def run_document(state: RunState, usd_per_hour: float | None, busy: float | None, predictions: Mapping[str, str]) -> Document:
    """One run: the figures of `status`, cost, and how good the predictions were."""
    document = document_of(state)
    left = document["eta_seconds"]
    left_s = left["p50"] if isinstance(left, dict) else None
    if usd_per_hour is not None:
        document |= cost_of(usd_per_hour, elapsed_s(state), left_s, state.completion_tokens, busy).as_document()
    made = [msgspec.json.decode(text, type=Prediction) for text in predictions.values()]
    ended = state.finished_at if state.status == "complete" else None
    document["predictions"] = (
        [one.as_document() for one in judged(made, ended)]
        if ended is not None
        else [{"made_at_percent": one.mark, "predicted_s": one.p50_s, "predicted_p90_s": one.p90_s} for one in made]
    )
    return document


def worker_document(name: str, told: Mapping[str, str], history: History, found: Bottleneck) -> Document:
    """One worker: what it is, what it does, what bounds it."""
    document: Document = {"name": name, **{field: told.get(field) or None for field in NAMES}}
    document["state"] = state_of(told)
    document |= {gauge: float(told[gauge]) if told.get(gauge) else None for gauge in GAUGES}
    return document | {
        "prompts_per_sec": _prompts_per_s(history, name),
        "decoded_tokens_per_sec": history.rate(name, "engine_decoded_total"),
        "retractions_per_sec": history.rate(name, "engine_retracted_total"),
        "busy_share": busy_share([told]),
        "bottleneck": found.kind,
        "bottleneck_sentence": found.sentence,
    }


def busy_share(workers: Iterable[Mapping[str, str]]) -> float | None:
    """Slots that were busy, as a share of all slots over the lifetimes of these workers; None if there is none."""
    busy = whole = 0.0
    for told in workers:
        if told.get("started_at") and told.get("updated_at"):
            whole += (float(told["updated_at"]) - float(told["started_at"])) * int(told.get("slots") or 0)
            busy += float(told.get("busy_slot_seconds") or 0)
    return round(min(1.0, busy / whole), 4) if whole > 0 else None


def accept_length(workers: Mapping[str, Mapping[str, str]], history: History) -> float | None:
    """Of the fleet: tokens ÷ verify steps, each summed over the engines; None if none speculates."""
    tokens = steps = 0.0
    for name, told in workers.items():
        length, rate = told.get("engine_accept_length"), history.rate(name, "engine_decoded_total")
        if length and rate:
            tokens += rate
            steps += rate / float(length)
    return round(tokens / steps, 4) if steps else None


def _prompts_per_s(history: History, name: str) -> float | None:
    return summed((history.rate(name, "completed"), history.rate(name, "failed")))


def _all_paused(runs: Sequence[RunState]) -> bool:
    under_way = [state for state in runs if state.status != "complete"]
    return bool(under_way) and all(state.status in {"paused", "cancelled"} for state in under_way)
