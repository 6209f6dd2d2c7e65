"""The figures of `status`, from what Redis knows of a run. Pure; names are those of DESIGN §8 and §10."""

from workers.contract.schema import Manifest
from workers.progress.rates import Eta, Sample, eta, gap_s, rates
from workers.progress.run_state import RunState

Document = dict[str, object]

_KNOWN_TO_REDIS = (
    *("status", "completed", "failed", "pending", "in_flight", "rate_per_sec", "rate_per_sec_lifetime", "eta_hours"),
    *("elapsed_hours", "total_input_tokens", "total_output_tokens", "avg_output_tokens", "output_tokens_per_sec", "shards"),
    *("shard_bytes", "s3_uploaded", "s3_bytes", "batches_done", "batches_leased", "finished_at", "parked", "failures"),
    *("flags", "workers"),
)


def document_of(state: RunState) -> Document:
    """One run for scripts. A figure that cannot be known is null.

    `in_flight` is null when a worker works on several runs at once. `avg_output_tokens` is over completed and failed prompts,
    because the tokens of both are counted. `s3_uploaded` and `s3_bytes` are the original tool's names of `shards` and
    `shard_bytes`. `elapsed_hours` ends when the run does.
    """
    samples = samples_until_now(state)
    told = rates(samples, state.now_s)
    left = time_left(state, samples)
    outcomes = state.completed + state.failed
    return {
        "run": state.run,
        "status": state.status,
        "total": state.total,
        "completed": state.completed,
        "failed": state.failed,
        "pending": state.pending,
        "in_flight": state.in_flight,
        "rejected": state.rejected,
        "rate_per_sec": _rounded(told.window),
        "rate_per_sec_lifetime": _rounded(told.lifetime),
        "eta_seconds": {"p50": _rounded(left.p50 if left else None), "p90": _rounded(left.p90 if left else None)},
        "eta_hours": _rounded(left.p50 / 3600 if left else None),
        "elapsed_hours": _rounded(elapsed_s(state) / 3600) if state.created_at else None,
        "total_input_tokens": state.prompt_tokens,
        "total_output_tokens": state.completion_tokens,
        "avg_output_tokens": round(state.completion_tokens / outcomes, 2) if outcomes else None,
        "output_tokens_per_sec": _rounded(told.tokens_per_s),
        "shards": state.shards,
        "shard_bytes": state.shard_bytes,
        "s3_uploaded": state.shards,
        "s3_bytes": state.shard_bytes,
        "batches": state.batches,
        "batches_done": state.batches_done,
        "batches_leased": state.leased_batches,
        "parked": dict(state.parked),
        "stands": state.stands,
        "batches_unpushed": state.unpushed,
        "failures": dict(state.reasons),
        "flags": dict(state.flags),
        "priority": state.priority,
        "model": state.model,
        "created_at": state.created_at,
        "finished_at": state.finished_at,
        "workers": [
            {
                "name": worker.name,
                "state": worker.state,
                "in_flight": worker.in_flight,
                "completed": worker.completed,
                "failed": worker.failed,
                "slots": worker.slots,
                "cause": worker.cause or None,
                "seen_s_ago": None if worker.seen_s_ago is None else round(worker.seen_s_ago, 1),
                "engine_url": worker.engine_url or None,
            }
            for worker in state.workers
        ],
    }


def document_of_forgotten(manifest: Manifest) -> Document:
    """A run that is in the store and not in Redis: what its manifest says, null for the rest."""
    return {
        "run": manifest.run,
        "total": manifest.prompts,
        "rejected": manifest.rejected,
        "batches": manifest.batches,
        "priority": manifest.priority,
        "model": manifest.model,
        "created_at": manifest.created_at,
        "eta_seconds": {"p50": None, "p90": None},
        **dict.fromkeys(_KNOWN_TO_REDIS),
        "message": forgotten(manifest.run),
    }


def forgotten(run: str) -> str:
    """What a person does about a run that only the store knows."""
    return (
        f"Redis does not know run {run}, but it is in the store: `producer resume {run}` rebuilds its counters and queue, "
        f"`producer audit {run}` tells its outcomes without Redis"
    )


def samples_until_now(state: RunState) -> tuple[Sample, ...]:
    """The samples, and the totals of this moment as the newest one, if anything was finished since and not a gap ago."""
    if state.status != "running" or not state.samples:
        return state.samples
    last, now = state.samples[-1], Sample(state.now_s, state.completed + state.failed, state.completion_tokens)
    fresh = 0 < now.at_s - last.at_s < gap_s(state.samples)
    return (*state.samples, now) if fresh and now.rows != last.rows else state.samples


def time_left(state: RunState, samples: tuple[Sample, ...]) -> Eta | None:
    """Time left of a run that goes on; 0 of a complete one, None of one on hold."""
    if state.status == "complete":
        return Eta(0.0, 0.0)
    if state.status not in {"running", "enqueueing"} or state.pending is None or state.stands:
        return None
    return eta(samples, state.now_s, max(0, state.pending))


def elapsed_s(state: RunState) -> float:
    """Seconds since the run was created, until it ended."""
    return (state.finished_at or state.now_s) - (state.created_at or state.now_s)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
