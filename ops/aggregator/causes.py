"""Why a worker is not doing more: one bottleneck each, from what it and its engine tell. Pure.

The first rule that holds names it, from what stops all work to what merely bounds it. A worker whose telemetry is not there is
said to tell nothing; nothing is guessed from zeros.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from workers.progress.run_state import SILENT, integer, real, state_of

Kind = Literal[
    "engine_sick",
    "store_slow",
    "draining",
    "paused",
    "tail",
    "client_starved",
    "kv_bound",
    "slot_bound",
    "compute_bound",
    "idle",
    "unknown",
]
FULL = 0.95
"""Of its running limit: the engine's batch is as good as full."""
KV_FULL = 0.9
GPU_BUSY = 0.9
SEVERE = frozenset({"engine_sick", "store_slow", "client_starved"})


@dataclass(frozen=True)
class Bottleneck:
    """What bounds one worker, and a sentence with the figures that say so."""

    kind: Kind
    sentence: str

    @property
    def alarming(self) -> bool:
        """Somebody should do something."""
        return self.kind in SEVERE


@dataclass(frozen=True)
class WorkerFigures:
    """What a worker tells, as numbers; None where it is silent. `retractions_per_s` needs two readings."""

    state: str
    cause: str
    in_flight: int
    slots: int
    unstarted: int
    running: int | None = None
    running_limit: int | None = None
    queued_at_engine: int | None = None
    kv_usage: float | None = None
    gpu_utilization: float | None = None
    retractions_per_s: float | None = None

    @classmethod
    def of(cls, told: Mapping[str, str], retractions_per_s: float | None = None) -> "WorkerFigures":
        """From a worker's hash in Redis."""
        return cls(
            state=state_of(told),
            cause=told.get("cause", ""),
            in_flight=int(told.get("in_flight") or 0),
            slots=int(told.get("slots") or 0),
            unstarted=int(told.get("unstarted") or 0),
            running=integer(told.get("engine_running")),
            running_limit=integer(told.get("engine_running_limit")),
            queued_at_engine=integer(told.get("engine_queued")),
            kv_usage=real(told.get("engine_kv_usage")),
            gpu_utilization=real(told.get("gpu_utilization")),
            retractions_per_s=retractions_per_s,
        )


def bottleneck(worker: WorkerFigures, *, queued_batches: int, all_paused: bool) -> Bottleneck:
    """What bounds a worker now.

    Args:
        worker: Its figures.
        queued_batches: That wait in the queue for any worker.
        all_paused: Every run that is under way is on hold.
    """
    stopped = _stopped(worker)
    if stopped is not None:
        return stopped
    if worker.in_flight == 0 and queued_batches == 0 and worker.unstarted == 0:
        return Bottleneck("paused", "every run is on hold") if all_paused else Bottleneck("idle", "no work is queued")
    busy = f"{worker.in_flight} of {worker.slots} slots busy"
    if worker.in_flight < worker.slots * FULL:
        if all_paused:
            return Bottleneck("paused", f"every run is on hold; {busy}")
        if queued_batches == 0 and worker.unstarted == 0:
            return Bottleneck("tail", f"the last answers of the run: {busy}, and nothing is queued")
        waiting = f"{queued_batches} batches queued, {worker.unstarted} prompts at hand"
        return Bottleneck("client_starved", f"{busy} with work at hand ({waiting}): store, Redis or this worker's loop is slow")
    return _bounded(worker, busy)


def _stopped(worker: WorkerFigures) -> Bottleneck | None:
    if worker.state in {"sick", "starting", SILENT}:
        return Bottleneck("engine_sick", f"{worker.state}: {worker.cause or 'it tells no cause'}")
    if worker.state == "waiting":
        return Bottleneck("store_slow", worker.cause or "finished batches wait for the store")
    if worker.state == "draining":
        return Bottleneck("draining", "it was told to stop")
    return None


def _bounded(worker: WorkerFigures, busy: str) -> Bottleneck:
    """All slots are busy: what keeps the engine from answering faster."""
    kv, running, limit = worker.kv_usage, worker.running, worker.running_limit
    if running is None or limit is None:
        return Bottleneck("unknown", f"{busy}; the engine tells no figures")
    batch = f"{running} of {limit} requests run"
    if (kv is not None and kv >= KV_FULL) or (worker.retractions_per_s or 0) > 0:
        usage = "" if kv is None else f", KV cache {kv:.0%} full"
        return Bottleneck("kv_bound", f"{batch}{usage}{', requests are retracted' if worker.retractions_per_s else ''}")
    if worker.gpu_utilization is not None and worker.gpu_utilization >= GPU_BUSY and running >= limit * FULL:
        return Bottleneck("compute_bound", f"{batch}, GPU {worker.gpu_utilization:.0%} busy")
    if running >= limit * FULL:
        waiting = "" if not worker.queued_at_engine else f", {worker.queued_at_engine} wait at the engine"
        return Bottleneck("slot_bound", f"{batch}{waiting}: its running limit binds")
    return Bottleneck("compute_bound", f"{busy}, {batch}: the engine takes requests no faster")
