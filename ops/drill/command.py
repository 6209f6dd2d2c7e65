"""`ops drill`: rounds of faults on a fleet of this machine, with the settings of the user's own, and a verdict."""

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from ops.drill.faults import KINDS, DrilledFleet, Striker, plan
from ops.drill.measure import Round, RunProof, summary
from ops.drill.proxy import Proxy
from ops.quickstart.processes import exit_on_termination, free_port, wait_until
from ops.quickstart.servers import redis_server, remove_sockets, s3_server
from workers.contract.errors import EXIT_FAILED

UNDER_WAY_SHARE = 0.1
ROUND_WITHIN_S = 300.0
PAUSE_S = (0.5, 2.0)


@contextmanager
def drilled_fleet(folder: Path, workers: int) -> Iterator[DrilledFleet]:
    """A fleet with its own Redis, and its own S3 server unless FLEET_STORE names a store."""
    port = free_port()
    settings = {name: value for name, value in os.environ.items() if name.startswith("FLEET_") and value}
    server, access, store_proxy, store_env = None, None, None, {}
    store_url = settings.pop("FLEET_STORE", "")
    settings.pop("FLEET_BROKER", None)
    try:
        if not store_url:
            server, access = s3_server(folder / "s3")
            server.start()
            store_proxy = Proxy(int(access.endpoint.rsplit(":", 1)[1])).start()
            store_url = f"s3://{access.bucket}/drill"
            store_env = {**access.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store_proxy.port}"}
        redis = redis_server(folder / "redis", port)
        fleet = DrilledFleet(folder, store_url, store_env, redis.start(), port, settings)
        try:
            fleet.broker_proxy, fleet.store_proxy = Proxy(port).start(), store_proxy
            fleet.begin(workers)
            yield fleet
        finally:
            fleet.stop()
    finally:
        if server is not None:
            server.kill()
            remove_sockets(server)


def drill_round(fleet: DrilledFleet, seed: int, number: int, prompts: int, kinds: list[str]) -> Round:
    """One run with faults in it, until it is complete and proven."""
    rng = random.Random(f"{seed} moments")  # noqa: S311
    result = Round(seed)
    run = f"drill-{seed}-{int(time.time())}"
    source = fleet.prompts(prompts, start=number * 1_000_000)
    begun = time.monotonic()
    done = fleet.producer("enqueue", str(source), "--run", run, "--max-tokens", "400", "--batch-size", "16", "--json")
    if done.code:
        result.unfinished = f"enqueue ended with {done.code}: {done.err.strip()[-300:]}"
        return result
    striker = Striker(fleet, run, fleet.prompts(200, start=number * 1_000_000 + 500_000), rng, begun)
    try:
        wait_until(lambda: fleet.counted(run) > prompts * UNDER_WAY_SHARE, ROUND_WITHIN_S, "the run under way")
        for kind in kinds:
            if fleet.status_of(run) == "complete":
                break
            result.faults.append(striker.strike(kind))
            time.sleep(rng.uniform(*PAUSE_S))
        runs = [run, *(fault.target for fault in result.faults if fault.kind == "producer-killed" and fault.target)]
        for one in runs:
            wait_until(lambda one=one: fleet.status_of(one) == "complete", ROUND_WITHIN_S, f"run {one} complete")  # type: ignore[misc]
    except TimeoutError as error:
        result.unfinished = str(error)
        runs = [run]
    result.wall_s = time.monotonic() - begun
    for one in runs:
        audit, status = (fleet.producer(command, one, "--json").json for command in ("audit", "status"))
        result.proofs.append(RunProof(one, audit, status))
    result.prompts = sum(int(proof.audit["rows"]) for proof in result.proofs)
    result.begun.update(fleet.past_requests)
    fleet.past_requests.clear()
    for name in fleet.engines:
        result.begun.update(fleet.generated(name))
    return result


def _only_of(result: Round, seen: set[str]) -> None:
    """Leave out what earlier rounds asked: the engines remember it."""
    for digest in seen & result.begun.keys():
        del result.begun[digest]
    seen.update(result.begun)


@click.command(
    epilog="Example: ops drill --rounds 3 --seed 7 --faults worker-killed,redis-killed", context_settings={"show_default": True}
)
@click.option("--prompts", type=click.IntRange(min=50), default=800, help="In each round.")
@click.option("--rounds", type=click.IntRange(min=1), default=1)
@click.option("--seed", type=int, default=1, help="Of the first round; each next one has the next number.")
@click.option("--workers", type=click.IntRange(min=2), default=2, help="Each beside a simulated engine of its own.")
@click.option("--faults", default=",".join(KINDS), help="Kinds to choose from, comma-separated.")
@click.option("--faults-per-round", type=click.IntRange(min=1), default=3)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def drill(prompts: int, rounds: int, seed: int, workers: int, faults: str, faults_per_round: int, as_json: bool) -> None:
    """Kill and cut the parts of a fleet while it works, and tell what was lost, doubled, repeated, and how soon it was back.

    The fleet is a rehearsal on this machine: simulated engines, an own Redis (never that of FLEET_BROKER, for it is killed),
    and an own S3 server unless FLEET_STORE is set. All other FLEET_ settings are yours. Ends with 1 if a guarantee broke.
    """
    kinds = [kind for kind in faults.split(",") if kind]
    if unknown := sorted(set(kinds) - KINDS.keys()):
        raise click.BadParameter(f"{', '.join(unknown)}: expected some of {', '.join(KINDS)}", param_hint="--faults")
    exit_on_termination()
    folder = Path(tempfile.mkdtemp(prefix="promptfleet-drill-"))
    done: list[Round] = []
    seen: set[str] = set()
    with drilled_fleet(folder, workers) as fleet:
        for number in range(rounds):
            result = drill_round(fleet, seed + number, number, prompts, plan(seed + number, kinds, faults_per_round))
            _only_of(result, seen)
            done.append(result)
            click.echo(line_of(result), err=True)
    broken = any(one.broken() for one in done)
    if as_json:
        document = {
            "rounds": [one.as_document() for one in done],
            "summary": summary(done),
            "logs": str(folder) if broken else None,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        _table(done)
    if broken:
        click.echo(f"a guarantee broke; logs of all parts: {folder}", err=True)
        sys.exit(EXIT_FAILED)
    shutil.rmtree(folder, ignore_errors=True)


def line_of(result: Round) -> str:
    """One round for people."""
    faults = ", ".join(
        f"{fault.kind} {'left out' if fault.left_out else '?' if fault.back_s is None else f'{fault.back_s:.1f} s'}"
        for fault in result.faults
    )
    verdict = "; ".join(result.broken()) or "whole"
    return (
        f"seed {result.seed}: {result.prompts} prompts in {result.wall_s:.0f} s, lost {result.lost}, doubled {result.doubled}, "
        f"regenerated {result.regenerated} of {result.may_regenerate} allowed; back after: {faults}; {verdict}"
    )


def _table(done: list[Round]) -> None:
    told = summary(done)
    table = Table("fault", "times", "median s until back", "worst")
    back: dict[str, dict[str, float]] = told["back_s"]  # type: ignore[assignment]
    for kind, times in back.items():
        table.add_row(kind, str(times["count"]), f"{times['median']:.1f}", f"{times['worst']:.1f}")
    console = Console()
    console.print(table)
    console.print(
        f"{told['rounds']} rounds, {told['prompts']} prompts: lost {told['lost']}, doubled {told['doubled']}, "
        f"regenerated {told['regenerated']} (allowed {told['may_regenerate']}), failed {told['failed']}"
    )
