"""One round of a drill: a run is enqueued, struck, waited for, and proven. Whatever goes wrong is told, with what was seen."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import redis.exceptions

from ops.drill.faults import Striker
from ops.drill.fleet import Result
from ops.drill.measure import Fault, Round, RunProof, attribute
from ops.drill.plan import Strike
from ops.drill.rehearsal import Rehearsal
from ops.drill.watch import Target
from ops.quickstart.processes import LOG_TAIL_LINES, ChildFailed, wait_until
from ops.simulator.lengths import digest_of

UNDER_WAY_SHARE = 0.1
ROUND_WITHIN_S = 300.0
BATCH_SIZE = 16
SPARE_PROMPTS = 400
PROMPTS_APART = 1_000_000
"""Rounds share no prompt, so that engines, which live on, tell them apart."""
WENT_WRONG = (TimeoutError, ChildFailed, subprocess.SubprocessError, httpx.HTTPError, redis.exceptions.RedisError, ValueError)


class CommandFailed(ValueError):
    """A command of the producer ended badly."""

    def __init__(self, command: str, done: Result) -> None:
        super().__init__(command, done)
        self.command, self.done = command, done

    def __str__(self) -> str:
        return f"`producer {self.command}` ended with {self.done.code}: {self.done.err.strip()[-300:]}"


def drill_round(
    fleet: Rehearsal, seed: int, number: int, prompts: int, strikes: Sequence[Strike], tell: Callable[[Fault], None]
) -> Round:
    """One run with faults in it, until it is complete and proven; each fault is told as soon as it is over.

    Args:
        fleet: Started; it serves one round after the other.
        seed: Names the round and its run.
        number: Of the round in this drill, from 0.
        prompts: To enqueue.
        strikes: In their order.
        tell: Progress.
    """
    result = Round(seed, begun_at=time.time())
    run, start = f"drill-{seed}-{int(time.time())}", number * PROMPTS_APART
    try:
        source, spare = fleet.prompts(prompts, start), fleet.prompts(SPARE_PROMPTS, start + PROMPTS_APART // 2)
        accepted = {run: _enqueue(fleet, run, source)}
        digests = [digest_of(f"prompt number {one}".encode()) for one in range(start, start + prompts)]
        striker = Striker(fleet, Target(run, digests, BATCH_SIZE, spare))
        wait_until(lambda: fleet.counted(run) > prompts * UNDER_WAY_SHARE, ROUND_WITHIN_S, "the run under way")
        for strike in strikes:
            fault = striker.strike(strike)
            result.faults.append(fault)
            tell(fault)
            if fault.run:
                accepted[fault.run] = SPARE_PROMPTS
        for one in accepted:
            wait_until(lambda one=one: fleet.status_of(one) == "complete", ROUND_WITHIN_S, f"run {one} complete")  # type: ignore[misc]
        result.proofs = [_proof(fleet, one, count) for one, count in accepted.items()]
        result.unexplained = attribute(result.faults, fleet.take_asked())
    except WENT_WRONG as error:
        result.unfinished = str(error)
        result.evidence = evidence(fleet, run)
    result.wall_s = time.time() - result.begun_at
    return result


def _enqueue(fleet: Rehearsal, run: str, source: Path) -> int:
    command = ["enqueue", str(source), "--run", run, "--max-tokens", "400", "--batch-size", str(BATCH_SIZE), "--json"]
    done = fleet.producer(*command)
    if done.code:
        raise CommandFailed("enqueue", done)
    return int(done.json["accepted"])


def _proof(fleet: Rehearsal, run: str, accepted: int) -> RunProof:
    audit, status = fleet.producer("audit", run, "--json"), fleet.producer("status", run, "--json")
    for name, done in (("audit", audit), ("status", status)):
        if not done.out.strip():  # audit ends with 1 when it finds something, and says what
            raise CommandFailed(f"{name} {run}", done)
    return RunProof(run, accepted, audit.json, status.json)


def evidence(fleet: Rehearsal, run: str) -> list[str]:
    """What a person wants to see of a round that did not end: status, parked batches, the ends of the logs."""
    told = []
    try:
        status = fleet.producer("status", run)
        parked: dict[bytes, bytes] = fleet.client.hgetall(f"fleet:{{{run}}}:parked")  # type: ignore[assignment]
        told += [status.out.strip() or status.err.strip()[-300:], f"parked: {json.dumps(_text(parked))}"]
    except WENT_WRONG as error:
        told.append(f"no status: {error}")
    for child in (fleet.redis_process, *fleet.workers.values(), *fleet.engine_processes.values()):
        lives = "runs" if child.alive() else f"ended with {child.returncode()}"
        lines = child.log_path.read_text(errors="replace").splitlines() if child.log_path.exists() else []
        told += [f"{child.name} ({lives}), the end of {child.log_path}:", *(f"  {line}" for line in lines[-LOG_TAIL_LINES:])]
    return told


def _text(mapping: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in mapping.items()}
