"""`ops drill`: rounds of faults on a fleet of this machine, with the settings of the user's own, and a verdict."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import msgspec

from ops.drill.measure import Fault, Round
from ops.drill.plan import KINDS, plan
from ops.drill.rehearsal import Rehearsal, rehearsal
from ops.drill.report import fault_line, print_table, round_document, round_line, summary
from ops.drill.rounds import drill_round
from ops.quickstart.processes import ChildFailed, exit_on_termination
from workers.contract.errors import EXIT_FAILED


@click.command(
    epilog="Example: ops drill --rounds 3 --seed 7 --faults worker-killed,redis-killed", context_settings={"show_default": True}
)
@click.option("--prompts", type=click.IntRange(min=50), default=1000, help="In each round.")
@click.option("--rounds", type=click.IntRange(min=1), default=1)
@click.option("--seed", type=int, default=1, help="Of the first round; each next one has the next number.")
@click.option("--workers", type=click.IntRange(min=2), default=2, help="Each beside a simulated engine of its own.")
@click.option("--faults", default=",".join(KINDS), help="Kinds to choose from, comma-separated.")
@click.option("--faults-per-round", type=click.IntRange(min=1), default=3)
@click.option("--s3", is_flag=True, help="Start an S3 server, so that the store can be cut off, unless FLEET_STORE is set.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def drill(
    prompts: int, rounds: int, seed: int, workers: int, faults: str, faults_per_round: int, s3: bool, as_json: bool
) -> None:
    """Kill and cut the parts of a fleet while it works, and tell what was lost, doubled, repeated, and how soon it was back.

    The fleet is a rehearsal on this machine: simulated engines, an own Redis (never that of FLEET_BROKER, for it is killed),
    and the store of FLEET_STORE, else a temporary folder. All other FLEET_ settings are yours. Seconds until back count from
    a kill, or from the end of an outage. Ends with 1 if a guarantee broke; then the logs are kept.
    """
    kinds = [kind for kind in faults.split(",") if kind]
    if unknown := sorted(set(kinds) - set(KINDS)):
        raise click.BadParameter(f"{', '.join(unknown)}: expected some of {', '.join(KINDS)}", param_hint="--faults")
    exit_on_termination()
    folder = Path(tempfile.mkdtemp(prefix="promptfleet-drill-"))
    done: list[Round] = []
    kept = False
    try:
        with rehearsal(folder, workers, os.environ, with_s3=s3) as fleet:
            _introduce(fleet, os.environ)
            for number in range(rounds):
                strikes = plan(seed + number, kinds, faults_per_round)
                done.append(drill_round(fleet, seed + number, number, prompts, strikes, _tell(seed + number)))
                click.echo(round_line(done[-1]), err=True)
                if done[-1].unfinished:  # what is left of its run would disturb the next
                    break
        kept = any(one.broken() for one in done)
    except ChildFailed as error:
        kept = True
        click.echo(str(error), err=True)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    _report(done, rounds, folder if kept else None, as_json=as_json)
    if kept:
        sys.exit(EXIT_FAILED)


def _tell(seed: int) -> Callable[[Fault], None]:
    return lambda fault: click.echo(f"seed {seed}: {fault_line(fault)}", err=True)


def _introduce(fleet: Rehearsal, environment: Mapping[str, str]) -> None:
    """Say what is the drill's own, and what is left alone."""
    left = ", FLEET_BROKER is left alone" if environment.get("FLEET_BROKER") else ""
    click.echo(f"Redis: the drill's own on port {fleet.redis_port}{left}", err=True)
    way = f"faults of the store are left out: {fleet.uncut}" if fleet.uncut else "through a proxy that can be cut"
    click.echo(f"store: {fleet.store_url}; {way}", err=True)
    if environment.get("FLEET_STORE"):
        click.echo("its runs, drill-<seed>-<time>, stay in your store", err=True)


def _report(done: Sequence[Round], wanted: int, logs: Path | None, *, as_json: bool) -> None:
    for line in (line for one in done for line in one.evidence):
        click.echo(line, err=True)
    if as_json:
        document = {
            "rounds": [round_document(one) for one in done],
            "summary": summary(done, wanted),
            "logs": None if logs is None else str(logs),
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        print_table(done, wanted)
    if logs is not None:
        click.echo(f"a guarantee broke, or the drill did not end; logs of all parts: {logs}", err=True)
