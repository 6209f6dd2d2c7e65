"""`producer resume`: let a run go on; rebuild its counters and queue from the store first, unless it is only on hold."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import click
import kombu.exceptions
import redis
from celery import Celery

from producer.command import print_json, settings_of_command, with_progress
from producer.lift import ON_HOLD, lift_hold
from producer.manifests import read_manifest
from producer.parallel import in_order
from producer.printable import counted, printable
from producer.publish import Backpressure, note_repairs, room_in_queue
from producer.queue_state import taken_care_of
from producer.rebuild import Rebuilt, rebuild
from producer.repairs import find_repairs, last_number
from producer.run_lock import run_lock
from producer.shards import check_input
from workers.broker import broker_errors, connect_patiently
from workers.celery import make_app
from workers.contract import errors, layout
from workers.contract.broker_url import without_password
from workers.contract.errors import BrokerUnavailable, ShardCorrupt
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest
from workers.contract.settings import FleetSettings
from workers.object_store import ObjectStore
from workers.publish import push
from workers.store import open_store

SHOWN_BAD = 5


@dataclass
class Pushed:
    """What became of the batches that are not done. `bad`: batch → why it was not pushed."""

    pushed: int = 0
    waiting: int = 0
    leased: int = 0
    bad: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resumption:
    """All that `resume` did."""

    rebuilt: Rebuilt
    pushed: Pushed

    @property
    def bad(self) -> dict[str, str]:
        """Batches that no worker takes, and why."""
        return {**self.rebuilt.corrupt, **self.pushed.bad}


def resume_all(
    store: ObjectStore,
    client: "redis.Redis",
    settings: FleetSettings,
    manifest: Manifest,
    *,
    check_inputs: bool,
    anew: bool = True,
) -> list[Resumption]:
    """Let a run and its repairs go on.

    Args:
        store, client, settings, manifest, check_inputs: See `resume_run`.
        anew: Count them anew even if they are only on hold.

    Returns:
        The run first, then its repairs; without `anew`, only those that were on hold, if any was.

    Raises:
        As `resume_run`.
    """
    repairs = find_repairs(store, manifest)
    if not anew and (lifted := [done for part in (manifest, *repairs) if (done := _lifted(client, settings, part))]):
        return lifted
    resumed = [resume_run(store, client, settings, part, check_inputs=check_inputs) for part in (manifest, *repairs)]
    with broker_errors(settings):
        note_repairs(client, manifest, last_number(repairs))
    return resumed


def _lifted(client: "redis.Redis", settings: FleetSettings, manifest: Manifest) -> Resumption | None:
    with broker_errors(settings), run_lock(client, manifest.run):
        status = cast("bytes | None", client.hget(RunKeys(manifest.run).state, "status")) or b""
        if status.decode() not in ON_HOLD:
            return None
        waiting, leased = taken_care_of(client, manifest.run)
        lifted = lift_hold(client, settings, manifest)
    if lifted is None:
        return None
    return Resumption(lifted[0], Pushed(pushed=lifted[1], waiting=len(waiting), leased=len(leased - waiting)))


def resume_run(
    store: ObjectStore, client: "redis.Redis", settings: FleetSettings, manifest: Manifest, *, check_inputs: bool
) -> Resumption:
    """Rebuild counters and queue under the run's lock.

    Args:
        store: Of the run.
        client: From `workers.broker.connect`.
        settings: Of the fleet.
        manifest: Of the run.
        check_inputs: Read the input shard of each batch before its message is pushed.

    Raises:
        RunBusy: Another producer is at it.
        BrokerUnavailable: Redis is away; do it again.
        StoreUnavailable: The store is away; do it again.
    """
    with broker_errors(settings), run_lock(client, manifest.run):
        rebuilt = rebuild(store, client, settings, manifest, on_hold="lift")
        if rebuilt.status == "complete":
            return Resumption(rebuilt, Pushed())
        waiting, leased = taken_care_of(client, manifest.run)
        pending = [number for number in rebuilt.done.absent() if layout.batch_label(number) not in rebuilt.corrupt]
        told = Pushed(waiting=len(waiting.intersection(pending)), leased=len(leased.difference(waiting).intersection(pending)))
        missing = [number for number in pending if number not in waiting and number not in leased]
        with make_app(settings) as app:
            push_batches(app, client, store, settings, manifest, missing, told, check_inputs=check_inputs)
        _park(client, manifest, told.bad)
        return Resumption(rebuilt, told)


def push_batches(
    app: Celery,
    client: "redis.Redis",
    store: ObjectStore,
    settings: FleetSettings,
    manifest: Manifest,
    numbers: list[int],
    told: Pushed,
    *,
    check_inputs: bool,
) -> None:
    """Push one message for each batch whose input shard is sound."""

    def checked(number: int) -> tuple[int, ShardCorrupt | None]:
        try:
            if check_inputs:
                check_input(store, manifest, number)
        except ShardCorrupt as error:
            return number, error
        return number, None

    results: Iterable[tuple[int, ShardCorrupt | None]] = in_order(checked, numbers)
    room = 0
    for number, error in with_progress(results, f"resume {manifest.run}: batches", len(numbers)):
        label = layout.batch_label(number)
        if error is not None:
            told.bad[label] = str(error)
            continue
        room = (room or room_in_queue(client, Backpressure())) - 1
        try:
            push(app, manifest.message_of(number), manifest.priority)
        except kombu.exceptions.OperationalError as failure:
            raise BrokerUnavailable(without_password(settings.broker), str(failure)) from failure
        client.setbit(RunKeys(manifest.run).pushed, number, 1)
        told.pushed += 1


def _park(client: "redis.Redis", manifest: Manifest, bad: dict[str, str]) -> None:
    """No message and no pushed bit: otherwise the sweep would push what no worker can do."""
    keys = RunKeys(manifest.run)
    pipeline = client.pipeline(transaction=True)
    for number in (parsed for label in bad if (parsed := layout.parse_batch_label(label)) is not None):
        pipeline.setbit(keys.pushed, number, 0)
    for label, cause in bad.items():
        pipeline.hset(keys.parked, label, cause)
    pipeline.execute()


@click.command(epilog="Example: producer resume my-run")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--trust-inputs", is_flag=True, help="Do not read the input shards before their batches are pushed.")
@click.option("--rebuild", "anew", is_flag=True, help="Count anew from the store, even if the run is only on hold.")
def resume(run: str, as_json: bool, trust_inputs: bool, anew: bool) -> None:
    """Let RUN go on: one that is paused or cancelled, that Redis forgot, or whose batches were parked.

    Unless the run is only on hold, its counters and queue are rebuilt from the store. Safe to repeat at any moment, also while
    workers work on it. Ends with 1 if an input that is still needed is missing or corrupt, or an output is not as long as it
    was written (`producer audit` reads outputs wholly); the other batches are pushed all the same.
    """
    settings = settings_of_command()
    store = open_store(settings)
    manifest = read_manifest(store, run)
    done = resume_all(store, connect_patiently(settings), settings, manifest, check_inputs=not trust_inputs, anew=anew)
    if as_json:
        first, *others = (as_document(one) for one in done)
        print_json(first | ({"repairs": others} if others else {}))
    else:
        click.echo("\n".join(line for one in done for line in as_text(one)))
    if any(one.bad for one in done):
        sys.exit(errors.EXIT_FAILED)


def as_document(done: Resumption) -> dict[str, object]:
    """For scripts."""
    told = done.pushed
    return {
        "run": done.rebuilt.run,
        **done.rebuilt.as_document(),
        "pushed": told.pushed,
        "waiting": told.waiting,
        "leased": told.leased,
        "corrupt": len(done.bad),
        "problems": done.bad,
    }


def as_text(done: Resumption) -> list[str]:
    """For people."""
    rebuilt, told = done.rebuilt, done.pushed
    before = rebuilt.status_before
    was = "Redis did not know it" if before is None else f"it was {before}"
    lines = [
        f"run {rebuilt.run} ({was}): {rebuilt.sentence()}",
        f"  {counted(told.pushed, 'batch')} pushed, {told.waiting:,} in the queue already, {told.leased:,} being worked on",
    ]
    lines += [f"  not pushed: {printable(cause, 300)}" for cause in list(done.bad.values())[:SHOWN_BAD]]
    if len(done.bad) > SHOWN_BAD:
        lines.append(f"  and {len(done.bad) - SHOWN_BAD:,} more; --json lists all")
    return lines
