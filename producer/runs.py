"""`producer runs`: the runs of the store, joined with what Redis knows of them."""

import time
from dataclasses import dataclass
from typing import cast

import click
import redis

from producer.command import print_json, settings_of_command
from producer.manifests import find_manifest, run_names
from producer.parallel import in_order
from producer.printable import printable
from producer.status_text import number
from workers.broker import broker_errors, connect
from workers.contract import layout, names
from workers.contract.errors import ContractMismatch, ShardCorrupt
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest
from workers.object_store import ObjectStore
from workers.progress.run_state import read_run
from workers.store import open_store


@dataclass(frozen=True)
class Listed:
    """One run.

    `manifest` is None while the run is being enqueued, or if it cannot be read (`problem`); `status` is None if Redis
    forgot it.
    """

    run: str
    manifest: Manifest | None
    problem: str | None
    status: str | None
    completed: int | None
    failed: int | None

    def as_document(self) -> dict[str, object]:
        """For scripts."""
        manifest = self.manifest
        known = None not in (manifest, self.completed, self.failed)
        return {
            "run": self.run,
            "status": self.status,
            "total": manifest.prompts if manifest else None,
            "completed": self.completed,
            "failed": self.failed,
            "pending": manifest.prompts - (self.completed or 0) - (self.failed or 0) if manifest and known else None,
            "rejected": manifest.rejected if manifest else None,
            "batches": manifest.batches if manifest else None,
            "created_at": manifest.created_at if manifest else None,
            "model": manifest.model if manifest else None,
            "problem": self.problem,
        }


def list_runs(store: ObjectStore, client: "redis.Redis") -> list[Listed]:
    """All runs of the store and those that Redis says are under way, by the time of their creation.

    Raises:
        StoreUnavailable: The store is away.
        redis.RedisError: Redis is away.
    """
    under_way = {names.parse_repair(run.decode())[0] for run in cast("list[bytes]", client.zrange(names.RUNS, 0, -1))}
    everyone = sorted({*run_names(store), *under_way})
    pipeline = client.pipeline(transaction=False)
    for run in everyone:
        keys = RunKeys(run)
        pipeline.hmget(keys.state, "status", "repairs")
        pipeline.hmget(keys.counts, "completed", "failed")
    told = iter(pipeline.execute())
    listed = []
    for run, (manifest, problem) in zip(everyone, in_order(lambda run: _manifest(store, run), everyone), strict=True):
        (status, repairs), counted = next(told), next(told)
        completed, failed = (int(count or 0) if status else None for count in counted)
        if repairs and (state := read_run(client, run)) is not None:
            status, completed, failed = state.status.encode(), state.completed, state.failed
        listed.append(Listed(run, manifest, problem, status.decode() if status else None, completed, failed))
    return sorted(listed, key=lambda one: (one.manifest.created_at if one.manifest else float("inf"), one.run))


def _manifest(store: ObjectStore, run: str) -> tuple[Manifest | None, str | None]:
    try:
        return find_manifest(store, run), None
    except (ShardCorrupt, ContractMismatch) as error:
        return None, str(error)


def as_line(listed: Listed) -> str:
    """One run for people."""
    if listed.problem is not None:
        return f"{listed.run}: {printable(listed.problem)}"
    if listed.manifest is None:
        whole = f"If it was whole once, restore {layout.manifest(listed.run)}"
        return f"{listed.run}: no manifest, so it is not wholly enqueued: repeat its `producer enqueue`. {whole}"
    created = time.strftime("%Y-%m-%d %H:%M", time.gmtime(listed.manifest.created_at))
    prompts = f"{number(listed.manifest.prompts)} prompts"
    model = f", model {printable(listed.manifest.model, 60)}" if listed.manifest.model else ""
    if listed.status is None:
        steps = f"`producer audit {listed.run}`, `producer resume {listed.run}`"
        return f"{listed.run}: {prompts}, created {created} UTC{model}; Redis does not know it (any more): {steps}"
    return (
        f"{listed.run}: {listed.status}, {prompts}, {number(listed.completed)} completed, {number(listed.failed)} failed, "
        f"created {created} UTC{model}"
    )


@click.command(epilog="Example: producer runs --json")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def runs(as_json: bool) -> None:
    """List the runs of the store, with what Redis knows of each."""
    settings = settings_of_command()
    with broker_errors(settings):
        listed = list_runs(open_store(settings), connect(settings))
    if as_json:
        print_json({"runs": [one.as_document() for one in listed]})
    elif listed:
        click.echo("\n".join(as_line(one) for one in listed))
    else:
        click.echo(f"no runs in {settings.store}; `producer enqueue` makes one")
