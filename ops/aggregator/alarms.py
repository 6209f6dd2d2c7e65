"""What somebody should look at now, each with what, which and why. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ops.aggregator.causes import Bottleneck
from ops.aggregator.history import History
from workers.progress.figures import Document
from workers.progress.run_state import SILENT, RunState

REDIS_FULL = 0.85
FAILING = 0.1
FEWEST_FAILURES = 20
"""In the window of a minute: a handful of bad prompts in a row is no burst."""
NO_SPECULATION = 1.005
ALIKE = (("model", "models"), ("engine_version", "versions of SGLang"), ("flags_digest", "sets of engine flags"))


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong. `what` is a worker, a run, or the fleet."""

    kind: str
    what: str
    sentence: str


def alarms(
    workers: Mapping[str, Mapping[str, str]],
    bottlenecks: Mapping[str, Bottleneck],
    history: History,
    runs: Sequence[tuple[RunState, Document]],
    memory: tuple[int, int, str],
) -> list[Alarm]:
    """All that is wrong now.

    Args:
        workers: Hash of each that lives.
        bottlenecks: Of each.
        history: Of their counters.
        runs: Each with its figures.
        memory: Bytes that Redis uses, and may use (0: no limit), and what it does then.
    """
    return [
        *(Alarm(found.kind, name, found.sentence) for name, found in bottlenecks.items() if found.alarming),
        *_of_workers(workers, history),
        *_of_engines(workers),
        *(alarm for state, document in runs for alarm in _of_run(state, document, workers)),
        *_of_redis(*memory),
    ]


def _of_workers(workers: Mapping[str, Mapping[str, str]], history: History) -> Iterator[Alarm]:
    for name, told in workers.items():
        failed, completed = history.grown(name, "failed"), history.grown(name, "completed")
        if failed >= FEWEST_FAILURES and failed >= FAILING * (failed + completed):
            sentence = f"{failed:.0f} of its last {failed + completed:.0f} prompts failed; `producer failures` groups them"
            yield Alarm("failure_burst", name, sentence)
        accept = told.get("engine_accept_length")
        if accept and float(accept) <= NO_SPECULATION:
            yield Alarm("no_speculation", name, f"accept length {float(accept):.2f}: the draft model is never right")


def _of_engines(workers: Mapping[str, Mapping[str, str]]) -> Iterator[Alarm]:
    for field, what in ALIKE:
        found = _grouped(workers, partial(_field, field))
        if len(found) > 1:
            usual = max(found.values(), key=len)
            others = sorted(name for names in found.values() if names is not usual for name in names)
            yield Alarm("engines_differ", "fleet", f"{len(found)} {what}: {', '.join(others[:5])} differ from the others")
    shared = _grouped(workers, lambda told: f"{told.get('host', '')} {told['engine_url']}" if told.get("engine_url") else "")
    for place, names in shared.items():
        if len(names) > 1:
            sentence = f"{', '.join(sorted(names))} use one engine, {place.partition(' ')[2]}: give each engine one worker"
            yield Alarm("engine_shared", "fleet", sentence)


def _field(name: str, told: Mapping[str, str]) -> str:
    return told.get(name, "")


def _grouped(workers: Mapping[str, Mapping[str, str]], key: Callable[[Mapping[str, str]], str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, told in workers.items():
        if value := key(told):
            found[value].append(name)
    return dict(found)


def _of_run(state: RunState, document: Document, workers: Mapping[str, Mapping[str, str]]) -> Iterator[Alarm]:
    if state.parked:
        yield Alarm("parked", state.run, f"{len(state.parked):,} batches wait for a person; `producer status {state.run}`")
    if state.status != "running" or state.stands:
        return
    for worker in state.workers:
        if worker.state == SILENT:
            yield Alarm(
                "worker_missing", worker.name, f"silent for {worker.seen_s_ago or 0:.0f} s with run {state.run} under way"
            )
    if not any(worker.up for worker in state.workers):
        yield Alarm("no_workers", state.run, "no worker is up")
    elif document["rate_per_sec"] == 0 and workers:
        yield Alarm("no_progress", state.run, "nothing was finished for longer than its pace explains")


def _of_redis(used: int, limit: int, policy: str) -> Iterable[Alarm]:
    if policy != "noeviction":
        yield Alarm("redis_evicts", "Redis", f"maxmemory-policy is {policy}, expected noeviction: lost keys are wrong counters")
    if limit and used > limit * REDIS_FULL:
        used_of = f"{used / limit:.0%} of its maxmemory of {limit / 1e6:,.0f} MB are used"
        yield Alarm("redis_full", "Redis", f"{used_of}; it refuses writes at 100 %")
