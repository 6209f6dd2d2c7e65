"""One look at Redis: every run, every worker, the queue, and Redis' own memory. Reads only."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import redis

from workers.broker import QUEUE_LISTS
from workers.contract import names
from workers.contract.names import RunKeys
from workers.progress.run_state import RunState, live_workers, read_run

_STATE_KEY = re.compile(r"fleet:\{(?P<run>[^}]+)\}:state")
SCAN_COUNT = 2000


@dataclass(frozen=True)
class Look:
    """What Redis said at `at_s`, UNIX seconds on its own clock. `workers` are the hashes of those that live."""

    at_s: float
    runs: tuple[RunState, ...]
    workers: Mapping[str, Mapping[str, str]]
    queued: int
    memory_bytes: int
    memory_limit_bytes: int
    memory_policy: str
    predictions: Mapping[str, Mapping[str, str]]


def look(client: "redis.Redis", known: frozenset[str]) -> Look:
    """Look once.

    Args:
        client: From `workers.broker.connect`.
        known: Runs to look at beside those that are under way, from `known_runs` or an earlier look.

    Raises:
        redis.RedisError: Redis is away.
    """
    under_way = {names.parse_repair(run.decode())[0] for run in cast("list[bytes]", client.zrange(names.RUNS, 0, -1))}
    workers = live_workers(client)
    runs = [state for run in sorted(under_way | known) if (state := read_run(client, run, workers)) is not None]
    pipeline = client.pipeline(transaction=False)
    for name in QUEUE_LISTS:
        pipeline.llen(name)
    for state in runs:
        pipeline.hgetall(RunKeys(state.run).predictions)
    pipeline.info("memory")
    pipeline.time()
    *answers, memory, clock = pipeline.execute()
    return Look(
        at_s=clock[0] + clock[1] / 1e6,
        runs=tuple(runs),
        workers=workers,
        queued=sum(answers[: len(QUEUE_LISTS)]),
        memory_bytes=int(memory["used_memory"]),
        memory_limit_bytes=int(memory["maxmemory"]),
        memory_policy=str(memory["maxmemory_policy"]),
        predictions={
            state.run: {mark.decode(): text.decode() for mark, text in told.items()}
            for state, told in zip(runs, answers[len(QUEUE_LISTS) :], strict=True)
        },
    )


def known_runs(client: "redis.Redis") -> frozenset[str]:
    """Runs that Redis knows, whether they are under way or not; walks over all keys, so seldom.

    Raises:
        redis.RedisError: Redis is away.
    """
    found = set()
    for key in client.scan_iter("fleet:{*}:state", count=SCAN_COUNT):
        matched = _STATE_KEY.fullmatch(key.decode())
        if matched is not None and names.parse_repair(matched["run"])[1] is None:
            found.add(matched["run"])
    return frozenset(found)
