"""`producer requeue`: generate failed prompts of a run again, as a repair whose outcomes replace the old ones.

The old outcomes stay where they are (lineage), and each repair is made once: what waits in one that is under way is not taken
into another. Without its manifest a repair does not exist, so an interrupted requeue changes nothing.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import click
import msgspec
import redis

from producer.batching import batches
from producer.collect.joining import joined_batches
from producer.command import print_json, settings_of_command, with_progress
from producer.manifests import read_manifest
from producer.printable import counted
from producer.publish import Backpressure, note_repairs, push_missing, settle, tell_state
from producer.repairs import Outcome, find_repairs, last_number
from producer.run_lock import run_lock
from producer.sources.sampling import problem_with
from producer.upload import write_shards
from workers.broker import broker_errors, connect_patiently
from workers.celery import make_app
from workers.contract import layout, names
from workers.contract.errors import UsageError
from workers.contract.names import RunKeys
from workers.contract.schema import REASONS, Manifest, Prompt, Repair, Sampling, encode_manifest
from workers.contract.settings import FleetSettings
from workers.store import ObjectStore, open_store

ALL_FAILED = "all failed"


class BadOverride(UsageError):
    """`--set` says nothing that can be sent."""

    def __init__(self, given: str, cause: str) -> None:
        super().__init__(given, cause)
        self.given, self.cause = given, cause

    def __str__(self) -> str:
        return f"--set {self.given}: {self.cause}; one of {', '.join(Sampling.__struct_fields__)}, as in --set max_tokens=4096"


class TooManyRepairs(UsageError):
    """The names of repairs have two digits."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run

    def __str__(self) -> str:
        return f"run {self.run} has {names.MAX_REPAIRS} repairs, which is the most; enqueue what is left as a run of its own"


@dataclass
class Choice:
    """Which failed outcomes are taken: those with one of `reasons`, all if there is none. Counts what it took."""

    reasons: tuple[str, ...] = ()
    taken: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)

    def takes(self, outcome: Outcome, *, pending: bool) -> bool:
        """Whether to generate this prompt again; counts it."""
        completion = outcome.completion
        if pending or completion is None or completion.status != "failed":
            return False
        if self.reasons and completion.reason not in self.reasons:
            return False
        self.taken[completion.reason or ""] += 1
        self.flags.update(completion.flags)
        return True


@dataclass(frozen=True)
class Requeued:
    """What became of a requeue; `repair` is None if no prompt was chosen, or nothing was to be written."""

    run: str
    repair: Manifest | None
    reasons: Mapping[str, int]
    pushed: int

    def as_document(self) -> dict[str, object]:
        """For scripts."""
        return {
            "run": self.run,
            "repair": self.repair.run if self.repair else None,
            "prompts": sum(self.reasons.values()),
            "reasons": dict(self.reasons),
            "batches": self.repair.batches if self.repair else 0,
            "pushed": self.pushed,
        }


def requeue_run(
    store: ObjectStore, client: "redis.Redis", settings: FleetSettings, manifest: Manifest, choice: Choice, overrides: Sampling
) -> Requeued:
    """Make a repair of the chosen prompts and push it; also push what an interrupted requeue did not.

    Raises:
        RunBusy: Another producer is at the run.
        ShardCorrupt: A shard cannot be read; `producer audit` says which.
        BrokerUnavailable, StoreUnavailable: The same command goes on from here.
    """
    with broker_errors(settings), run_lock(client, manifest.run) as lock:
        repairs = find_repairs(store, manifest)
        note_repairs(client, manifest, last_number(repairs))
        pushed = sum(_push(client, settings, repair) for repair in repairs)
        number = _next_number(store, manifest, repairs)
        if number > names.MAX_REPAIRS:
            raise TooManyRepairs(manifest.run)
        name = names.repair_name(manifest.run, number)
        prompts = chosen_prompts(store, manifest, repairs, choice, overrides)
        digests = write_shards(store, name, batches(prompts, manifest.batch_size), lock.check)
        if not digests:
            return Requeued(manifest.run, None, choice.taken, pushed)
        repair = repair_of(manifest, name, choice, overrides, digests)
        store.put(layout.manifest(name), encode_manifest(repair))
        note_repairs(client, manifest, number)
        return Requeued(manifest.run, repair, choice.taken, pushed + _push(client, settings, repair))


def _next_number(store: ObjectStore, manifest: Manifest, repairs: list[Manifest]) -> int:
    """Beyond every repair, and every folder with completions: those of an earlier run of this name would be taken for ours."""
    taken = {repair.run for repair in repairs}
    for prefix in store.folders(layout.repairs_prefix(manifest.run)):
        name = layout.repair_of_prefix(manifest.run, prefix)
        if name is not None and any(True for _ in store.list(layout.completions_prefix(name))):
            taken.add(name)
    return 1 + max((names.parse_repair(name)[1] or 0 for name in taken), default=0)


def chosen_prompts(
    store: ObjectStore, manifest: Manifest, repairs: list[Manifest], choice: Choice, overrides: Sampling
) -> Iterator[Prompt]:
    """The chosen prompts in order; what they carry of their own gives way to the overrides.

    Raises:
        ShardCorrupt: See `joined_batches`.
    """
    joined = joined_batches(store, manifest, repairs)
    for batch in with_progress(joined, f"requeue {manifest.run}: batches", manifest.batches):
        for outcome, pending in batch.outcomes:
            if choice.takes(outcome, pending=pending):
                yield overridden(outcome.prompt, overrides)


def overridden(prompt: Prompt, overrides: Sampling) -> Prompt:
    """A prompt whose own sampling does not win over what the person asked for now."""
    if prompt.sampling is None:
        return prompt
    return msgspec.structs.replace(prompt, sampling=prompt.sampling.overridden_by(overrides))


def repair_of(manifest: Manifest, name: str, choice: Choice, overrides: Sampling, digests: list[str]) -> Manifest:
    """The manifest of a repair."""
    count = sum(choice.taken.values())
    return Manifest(
        run=name,
        created_at=round(time.time(), 3),
        sources=(f"failed prompts of {manifest.run}",),
        source_sha256=manifest.source_sha256,
        source_bytes=0,
        accepted=count,
        rejected=0,
        reject_reasons={},
        prompts=count,
        batches=len(digests),
        batch_size=manifest.batch_size,
        samples=manifest.samples,
        sampling=manifest.sampling.overridden_by(overrides),
        shard_digests="".join(digests),
        model=manifest.model,
        priority=manifest.priority,
        producer_version=version("promptfleet"),
        repair=Repair(
            of=manifest.run,
            of_made=manifest.created_at,
            reasons=dict(choice.taken),
            flags=dict(choice.flags),
            chosen=", ".join(choice.reasons) or ALL_FAILED,
            overrides=overrides,
        ),
    )


def _push(client: "redis.Redis", settings: FleetSettings, repair: Manifest) -> int:
    keys = RunKeys(repair.run)
    if client.hget(keys.state, "status") == b"complete":
        return 0
    client.hsetnx(keys.state, "status", "enqueueing")
    client.zadd(names.RUNS, {repair.run: repair.created_at})
    tell_state(client, repair, settings.store)
    with make_app(settings) as app:
        pushed = push_missing(app, client, settings, repair, Backpressure())
    settle(client, keys)
    return pushed


def overrides_of(given: Iterable[str]) -> Sampling:
    """`name=value` of each `--set`.

    Raises:
        BadOverride: Names the one that cannot be sent.
    """
    values: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in Sampling.__struct_fields__:
            raise BadOverride(text, "no such value" if separator else "no value")
        values[name] = (value,) if name == "stop" else {"on": "true", "off": "false"}.get(value, value)
        try:
            sampling = msgspec.convert({name: values[name]}, Sampling, strict=False)
        except msgspec.ValidationError as error:
            expected = str(error).split("`")[1].removesuffix(" | null")
            raise BadOverride(text, f"found {value!r}, expected {expected}") from error
        if (problem := problem_with(sampling)) is not None:
            raise BadOverride(text, problem)
    return msgspec.convert(values, Sampling, strict=False)


@click.command(epilog="Example: producer requeue my-run --reason truncated_thinking --set max_tokens=8192")
@click.argument("run")
@click.option("--reason", "reasons", multiple=True, type=click.Choice(REASONS), help="Only these; may be given several times.")
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="Generate with another value, also where a row has its own."
)
@click.option("--dry-run", is_flag=True, help="Only count what would be taken.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def requeue(run: str, reasons: tuple[str, ...], given: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Generate failed prompts of RUN again; their new outcomes replace the old ones, which stay in the store."""
    settings = settings_of_command()
    overrides = overrides_of(given)
    store = open_store(settings)
    manifest = read_manifest(store, run)
    choice = Choice(reasons)
    if dry_run:
        for _ in chosen_prompts(store, manifest, find_repairs(store, manifest), choice, overrides):
            pass
        done = Requeued(run, None, choice.taken, 0)
    else:
        done = requeue_run(store, connect_patiently(settings), settings, manifest, choice, overrides)
    if as_json:
        print_json(done.as_document() | {"dry_run": dry_run})
    else:
        click.echo(sentence(done, choice, dry_run=dry_run))


def sentence(done: Requeued, choice: Choice, *, dry_run: bool) -> str:
    """For people, one line."""
    count = sum(done.reasons.values())
    wanted = f"with reason {' or '.join(choice.reasons)}" if choice.reasons else "failed"
    if not count:
        also = f"; {counted(done.pushed, 'batch')} of an earlier requeue pushed" if done.pushed else ""
        return f"run {done.run}: no prompt {wanted} that is not under way already{also}"
    told = ", ".join(f"{reason} {number:,}" for reason, number in sorted(done.reasons.items()))
    if dry_run:
        return f"run {done.run}: {counted(count, 'prompt')} would be generated again ({told})"
    batches_made = done.repair.batches if done.repair else 0
    return (
        f"run {done.run}: {counted(count, 'prompt')} to be generated again ({told}), in "
        f"{counted(batches_made, 'batch')} as repair "
        f"{done.repair.run if done.repair else ''}; `producer status {done.run}` follows them"
    )
