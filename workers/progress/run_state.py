"""What Redis knows of a run, read in one step and parsed once. Reads only; does not know the store."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import msgspec
import redis

from workers.contract import names
from workers.contract.names import RunKeys
from workers.contract.schema import Repair
from workers.progress.rates import Sample

_SAMPLE = msgspec.json.Decoder(tuple[float, int, int, int, int])
GONE = "gone"
"""State of a worker that counted prompts of the run and tells nothing any more."""
SILENT = "silent"
"""State of a worker that missed its last beats: dead, stopped, or cut off."""
BEATS_MISSED = 3


@dataclass(frozen=True)
class WorkerState:
    """One worker. `completed` and `failed` are its prompts of this run; `in_flight` those of all runs, None if it is gone.

    `seen_s_ago` is when it last told how it is.
    """

    name: str
    state: str
    completed: int
    failed: int
    in_flight: int | None = None
    slots: int | None = None
    cause: str = ""
    engine_url: str = ""
    model: str = ""
    seen_s_ago: float | None = None

    @property
    def up(self) -> bool:
        """It was heard of lately."""
        return self.state not in {GONE, SILENT}


@dataclass(frozen=True)
class RunState:
    """A run as Redis knows it at `now_s`, on Redis' own clock. None: Redis does not say."""

    run: str
    now_s: float
    status: str
    total: int | None
    batches: int | None
    rejected: int | None
    priority: int | None
    created_at: float | None
    finished_at: float | None
    model: str | None
    completed: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    batches_done: int
    shards: int
    shard_bytes: int
    reasons: Mapping[str, int]
    flags: Mapping[str, int]
    samples: tuple[Sample, ...]
    workers: tuple[WorkerState, ...]
    in_flight: int | None
    leased_batches: int
    parked: Mapping[str, str]
    repairs: int = 0
    replaces: Repair | None = None
    producer_at_work: bool = False
    unpushed: int = 0

    @property
    def pending(self) -> int | None:
        """Prompts without an outcome."""
        return None if self.total is None else self.total - self.completed - self.failed

    @property
    def ended(self) -> bool:
        """Nothing more will happen without a person."""
        return self.status in {"complete", "cancelled"} or self.stands

    @property
    def stands(self) -> bool:
        """All that is left are parked batches."""
        return self.status == "running" and bool(self.parked) and self.batches_done + len(self.parked) == self.batches


def read_run(client: "redis.Redis", run: str, workers: Mapping[str, Mapping[str, str]] | None = None) -> RunState | None:
    """A run with its repairs: state, counters, series and workers; None if Redis does not know it.

    Args:
        client: From `workers.broker.connect`.
        run: Its name.
        workers: From `live_workers`, if they were read already.

    Raises:
        redis.RedisError: Redis is away.
    """
    live = live_workers(client) if workers is None else workers
    base = _read_one(client, run, live)
    if base is None or not base.repairs:
        return base
    names_of_repairs = (names.repair_name(run, number) for number in range(1, base.repairs + 1))
    return with_repairs(base, [state for name in names_of_repairs if (state := _read_one(client, name, live)) is not None])


def _read_one(client: "redis.Redis", run: str, live: Mapping[str, Mapping[str, str]]) -> RunState | None:
    keys = RunKeys(run)
    pipeline = client.pipeline(transaction=True)  # one moment: completed + failed + pending = total
    for key in (keys.state, keys.counts, keys.reasons, keys.flags, keys.workers, keys.parked):
        pipeline.hgetall(key)
    pipeline.lrange(keys.series, 0, -1)
    pipeline.hvals(keys.owner)
    pipeline.exists(keys.enqueue)
    pipeline.get(keys.pushed)
    pipeline.get(keys.done)
    pipeline.time()
    state, counts, reasons, flags, by_worker, parked, series, owners, locked, pushed, done, clock = pipeline.execute()
    if not state.get(b"status"):
        return None
    told, counted = _text(state), _numbers(counts)
    workers = _workers(live, _numbers(by_worker))
    return RunState(
        run=run,
        now_s=clock[0] + clock[1] / 1e6,
        status=told["status"],
        total=integer(told.get("total")),
        batches=integer(told.get("batches")),
        rejected=integer(told.get("rejected")),
        priority=integer(told.get("priority")),
        created_at=real(told.get("created_at")),
        finished_at=real(told.get("finished_at")),
        model=told.get("model") or told.get("served") or None,
        completed=counted.get("completed", 0),
        failed=counted.get("failed", 0),
        prompt_tokens=counted.get("prompt_tokens", 0),
        completion_tokens=counted.get("completion_tokens", 0),
        batches_done=counted.get("batches", 0),
        shards=counted.get("shards", 0),
        shard_bytes=counted.get("shard_bytes", 0),
        reasons=_positive(_numbers(reasons)),
        flags=_positive(_numbers(flags)),
        samples=_samples(series),
        workers=workers,
        in_flight=_in_flight(client, run, owners, workers),
        leased_batches=len(owners),
        parked=_text(parked),
        repairs=int(told.get("repairs", 0)),
        producer_at_work=bool(locked),
        unpushed=_unpushed(integer(told.get("batches")), pushed, done, len(parked)),
        replaces=msgspec.json.decode(told["replaces"], type=Repair) if "replaces" in told else None,
    )


def with_repairs(base: RunState, repairs: Sequence[RunState]) -> RunState:
    """A run's figures with those of its repairs: each prompt counts as its newest outcome says, or as pending."""
    parts = [base, *repairs]
    replaced = [part.replaces for part in repairs if part.replaces is not None]
    completed = sum(part.completed for part in parts) - sum(repair.ok for repair in replaced)
    failed = sum(part.failed for part in parts) - sum(repair.failed for repair in replaced)
    at_work = next((part for part in parts if part.status != "complete"), parts[-1])
    shift = completed + failed - at_work.completed - at_work.failed
    tokens = sum(part.completion_tokens for part in parts)
    in_flight = [part.in_flight for part in parts]
    finished = [part.finished_at for part in parts]
    return replace(
        base,
        status=at_work.status,
        batches=None if base.batches is None else sum(part.batches or 0 for part in parts),
        finished_at=max(filter(None, finished)) if all(finished) else None,
        completed=completed,
        failed=failed,
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=tokens,
        batches_done=sum(part.batches_done for part in parts),
        shards=sum(part.shards for part in parts),
        shard_bytes=sum(part.shard_bytes for part in parts),
        reasons=_summed([part.reasons for part in parts], [repair.reasons for repair in replaced]),
        flags=_summed([part.flags for part in parts], [repair.flags for repair in replaced]),
        samples=tuple(
            Sample(sample.at_s, sample.rows + shift, sample.completion_tokens + tokens - at_work.completion_tokens)
            for sample in at_work.samples
        ),
        workers=_workers_of(parts),
        in_flight=None if None in in_flight else sum(filter(None, in_flight)),
        leased_batches=sum(part.leased_batches for part in parts),
        unpushed=sum(part.unpushed for part in parts),
        parked={
            batch if part is base else f"{part.run.removeprefix(base.run + '~')}-{batch}": cause
            for part in parts
            for batch, cause in part.parked.items()
        },
    )


def _summed(added: list[Mapping[str, int]], taken: list[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counted in added:
        total.update(counted)
    for counted in taken:
        total.subtract(counted)
    return _positive(dict(total))


def _workers_of(parts: Sequence[RunState]) -> tuple[WorkerState, ...]:
    merged: dict[str, WorkerState] = {}
    for part in parts:
        for worker in part.workers:
            before = merged.get(worker.name)
            merged[worker.name] = (
                worker
                if before is None
                else replace(worker, completed=before.completed + worker.completed, failed=before.failed + worker.failed)
            )
    return tuple(merged[name] for name in sorted(merged))


def live_workers(client: "redis.Redis") -> dict[str, dict[str, str]]:
    """What each worker that lives tells of itself, and `seen_s_ago`.

    Raises:
        redis.RedisError: Redis is away.
    """
    prefix = names.worker_key("")
    found = [key.decode() for key in client.scan_iter(f"{prefix}*", count=1000)]
    pipeline = client.pipeline(transaction=False)
    for key in found:
        pipeline.hgetall(key)
        pipeline.pttl(key)
    answers = pipeline.execute()
    live = {}
    for key, told, left_ms in zip(found, answers[::2], answers[1::2], strict=True):
        if told:  # by the time that its key has left, which needs no two clocks to agree
            live[key.removeprefix(prefix)] = _text(told) | {"seen_s_ago": str(max(0.0, names.WORKER_TTL_S - left_ms / 1000))}
    return live


def _workers(live: Mapping[str, Mapping[str, str]], counted: dict[str, int]) -> tuple[WorkerState, ...]:
    everyone = sorted(live.keys() | {field.rpartition(":")[0] for field in counted})
    return tuple(_worker(name, live.get(name, {}), counted) for name in everyone)


def state_of(told: Mapping[str, str]) -> str:
    """What a worker says that it is, unless it has missed its beats since."""
    seen_s_ago, beat_s = real(told.get("seen_s_ago")), real(told.get("beat_s"))
    if seen_s_ago is not None and beat_s is not None and seen_s_ago > BEATS_MISSED * beat_s:
        return SILENT
    return told.get("state", GONE)


def _worker(name: str, told: Mapping[str, str], counted: dict[str, int]) -> WorkerState:
    return WorkerState(
        name=name,
        state=state_of(told),
        seen_s_ago=real(told.get("seen_s_ago")),
        completed=counted.get(f"{name}:completed", 0),
        failed=counted.get(f"{name}:failed", 0),
        in_flight=integer(told.get("in_flight")),
        slots=integer(told.get("slots")),
        cause=told.get("cause", ""),
        engine_url=told.get("engine_url", ""),
        model=told.get("model", ""),
    )


def _in_flight(client: "redis.Redis", run: str, owners: list[bytes], workers: tuple[WorkerState, ...]) -> int | None:
    """Prompts of this run in the engines: those of its workers, unless one of them works on another run too."""
    mine = _names(owners)
    if not mine:
        return 0
    pipeline = client.pipeline(transaction=False)
    for other in cast("list[bytes]", client.zrange(names.RUNS, 0, -1)):
        if other.decode() != run:
            pipeline.hvals(RunKeys(other.decode()).owner)
    elsewhere = {name for found in cast("list[list[bytes]]", pipeline.execute()) for name in _names(found)}
    if mine & elsewhere:
        return None
    return sum(worker.in_flight or 0 for worker in workers if worker.name in mine)


def _names(owners: list[bytes]) -> set[str]:
    return {owner.decode().rpartition("#")[0] for owner in owners}


def _samples(series: list[bytes]) -> tuple[Sample, ...]:
    samples = []
    for raw in reversed(series):
        at_s, completed, failed, _, completion_tokens = _SAMPLE.decode(raw)
        samples.append(Sample(at_s, completed + failed, completion_tokens))
    return tuple(samples)


def _text(found: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


def _numbers(found: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in found.items()}


def _unpushed(batches: int | None, pushed: bytes | None, done: bytes | None, parked: int) -> int:
    """Batches that nobody was told of: not pushed, not done, and not parked."""
    width = max(len(pushed or b""), len(done or b""))
    known = [int.from_bytes((bitmap or b"").ljust(width, b"\0")) for bitmap in (pushed, done)]
    told = known[0] | known[1]
    return max(0, (batches or 0) - told.bit_count() - parked)


def _positive(counted: dict[str, int]) -> dict[str, int]:
    """Without names that were counted and taken back."""
    return {name: count for name, count in counted.items() if count}


def integer(text: str | None) -> int | None:
    """A field of a hash; None if it is absent or empty."""
    return int(text) if text else None


def real(text: str | None) -> float | None:
    """The same with decimals."""
    return float(text) if text else None
