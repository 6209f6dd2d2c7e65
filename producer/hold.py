"""`producer pause` and `producer cancel`: no worker begins another batch of the run, until `producer resume`.

The claim script asks the run's status, so a hold takes effect at the next claim. Workers end what they have begun of a paused
run; of a cancelled one they abort it at their next beat and store what was answered, the rest of these batches as `cancelled`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import click
import redis

from producer.command import print_json, settings_of_command
from producer.manifests import read_manifest
from producer.repairs import find_repairs
from workers.broker import broker_errors, connect
from workers.celery import make_app
from workers.contract import layout, names
from workers.contract.errors import UsageError
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest
from workers.contract.settings import FleetSettings
from workers.publish import push
from workers.store import open_store

_SCRIPT = (Path(__file__).parent / "hold.lua").read_text()
Hold = Literal["paused", "cancelled"]


class RunIsOver(UsageError):
    """Nothing is left to hold."""

    def __init__(self, run: str, status: str, wanted: Hold) -> None:
        super().__init__(run, status, wanted)
        self.run, self.status, self.wanted = run, status, wanted

    def __str__(self) -> str:
        return f"run {self.run} is {self.status}, so it cannot be {self.wanted}; `producer status {self.run}` tells its figures"


class RunForgotten(UsageError):
    """The run is in the store, and Redis does not know it: no worker works on it."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"Redis does not know run {self.run}, so no worker works on it; `producer resume {self.run}` would let it run"


def hold(settings: FleetSettings, client: "redis.Redis", manifest: Manifest, wanted: Hold) -> str:
    """Pause or cancel a run.

    Returns:
        Its status before.

    Raises:
        RunIsOver, RunForgotten: Nothing was changed.
        BrokerUnavailable: Redis is away.
    """
    keys = RunKeys(manifest.run)
    with broker_errors(settings):
        script = client.register_script(_SCRIPT)
        lasting = [key for key in keys.lasting() if key != keys.state]
        before = cast("bytes", script(keys=[keys.state, *lasting], args=[wanted, round(names.FINISHED_TTL_S)])).decode()
        if not before:
            raise RunForgotten(manifest.run)
        if before == "complete" or (before == "cancelled" and wanted == "paused"):
            raise RunIsOver(manifest.run, before, wanted)
        if wanted == "cancelled":
            _push_open(settings, client, manifest)
    return before


def _push_open(settings: FleetSettings, client: "redis.Redis", manifest: Manifest) -> None:
    """Let a worker store what was answered of batches that nobody holds; one that is held is only looked at."""
    opened = cast("set[bytes]", client.smembers(RunKeys(manifest.run).open))
    with make_app(settings) as app:
        for label in sorted(opened):
            parsed = layout.parse_batch_label(label.decode())
            if parsed is not None:
                push(app, manifest.message_of(parsed), manifest.priority, recovered=True)


def hold_all(settings: FleetSettings, client: "redis.Redis", parts: Sequence[Manifest], wanted: Hold) -> str:
    """Hold a run and its repairs; those that are over already stay so.

    Returns:
        The status before, of the first that was not over.

    Raises:
        RunIsOver: All are over.
        RunForgotten, BrokerUnavailable: See `hold`.
    """
    before, over = [], []
    for part in parts:
        try:
            before.append(hold(settings, client, part, wanted))
        except RunIsOver as error:
            over.append(error)
    if not before:
        raise over[0]
    return before[0]


def _hold(run: str, wanted: Hold, as_json: bool, sentence: str) -> None:
    settings = settings_of_command()
    store = open_store(settings)
    manifest = read_manifest(store, run)
    before = hold_all(settings, connect(settings), (manifest, *find_repairs(store, manifest)), wanted)
    if as_json:
        print_json({"run": run, "status": wanted, "status_before": before})
    else:
        click.echo(f"run {run} is {wanted} (it was {before}): {sentence}; `producer resume {run}` lets it run again")


@click.command(epilog="Example: producer pause my-run")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def pause(run: str, as_json: bool) -> None:
    """Begin no other batch of RUN; those that are begun end as usual."""
    _hold(run, "paused", as_json, "workers end the batches that they have begun, and begin no other")


@click.command(epilog="Example: producer cancel my-run")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def cancel(run: str, as_json: bool) -> None:
    """End RUN now: what is in flight is aborted, what was answered is kept.

    Prompts of the batches that were begun fail as `cancelled`; the other batches stay pending.
    """
    _hold(run, "cancelled", as_json, "what is in flight is aborted at the workers' next beat, what was answered is stored")
