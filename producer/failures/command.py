"""`producer failures`: what failed, what the failing prompts share, and what to do.

Reads the store; asks Redis for parked batches only, and does without them if it does not answer.
"""

from contextlib import nullcontext
from typing import IO, cast

import click
import msgspec
import redis
from rich.console import Console

from producer.collect.joining import outcomes_of
from producer.collect.output import STDOUT, open_output
from producer.command import as_json_text, fleet_settings_if_given, store_settings_of_command
from producer.failures.groups import Groups, Wanted
from producer.failures.reading import BASELINE_SHARDS, read_shards, stored_numbers
from producer.failures.remedies import REMEDIES
from producer.failures.report import Report, row_document
from producer.failures.text import parts
from producer.manifests import read_manifest
from producer.repairs import Layer, find_repairs
from producer.shards import read_prompts
from workers.broker import connect
from workers.contract.errors import ShardCorrupt
from workers.contract.names import RunKeys
from workers.contract.schema import Completion, Manifest, Prompt, ShardCounts
from workers.contract.settings import FleetSettings
from workers.store import ObjectStore, open_store

PLAIN_WIDTH = 160
"""Columns where there is no terminal to ask."""


def examine_run(store: ObjectStore, manifest: Manifest, wanted: Wanted, ids: IO[bytes] | None = None) -> Report:
    """Read what failed in a run, shard by shard; memory does not grow with it, but for a bit for each batch.

    Args:
        store: Of the run.
        manifest: Of the run.
        wanted: What to group.
        ids: Failing rows go here, one JSON object a line, in the order of batches.

    Raises:
        StoreUnavailable: The store stopped answering.
        ShardCorrupt: A repair cannot be read.
    """
    stored = stored_numbers(store, manifest)
    layers = [Layer(outcomes_of(store, repair)) for repair in find_repairs(store, manifest)]
    report = Report(manifest, Groups(wanted, whole=len(stored) <= BASELINE_SHARDS), len(stored))
    for shard in read_shards(store, manifest, stored, wanted, repaired=bool(layers)):
        rows = None if shard.rows is None else newest_rows(shard.rows, layers)
        report.count(shard.counts if rows is None else ShardCounts.of(rows))
        if shard.error is not None:
            report.told(shard.error)
        if rows is None:
            continue
        report.read += 1
        failed = report.groups.add(shard.number, rows, in_baseline=shard.in_baseline)
        if ids is not None and failed:
            ids.write(b"".join(msgspec.json.encode(row_document(row)) + b"\n" for row in failed))
    return report


def newest_rows(rows: list[Completion], layers: list[Layer]) -> list[Completion]:
    """Rows of a batch as the run's repairs left them; without those that a repair under way will replace."""
    kept = []
    for row in rows:
        newest: Completion | None = row
        for layer in layers:
            found = layer.take((row.row, row.sample))
            if found is not None:
                newest = found.completion and msgspec.structs.replace(found.completion, index=row.index)
        if newest is not None:
            kept.append(newest)
    return kept


def prompts_of_examples(store: ObjectStore, report: Report) -> dict[tuple[int, int], Prompt]:
    """The prompts of all examples, by batch and index; those whose shard cannot be read are left out."""
    wanted = {(one.number, one.row.index) for group in report.groups.found.values() for one in group.examples}
    found = {}
    for number in sorted({number for number, _ in wanted}):
        try:
            prompts, _ = read_prompts(store, report.manifest, number)
        except ShardCorrupt:
            continue
        found.update({(number, index): prompt for index, prompt in enumerate(prompts) if (number, index) in wanted})
    return found


def parked_batches(settings: FleetSettings | None, run: str) -> dict[str, str] | None:
    """Batches that were given up, with their causes; None if Redis does not answer, or is not named."""
    if settings is None:
        return None
    try:
        found = cast("dict[bytes, bytes]", connect(settings).hgetall(RunKeys(run).parked))
    except redis.RedisError:
        return None
    return {batch.decode(): cause.decode() for batch, cause in found.items()}


@click.command(epilog="Example: producer failures my-run --reason timeout --ids failed.jsonl")
@click.argument("run")
@click.option("--reason", type=click.Choice(list(REMEDIES)), metavar="REASON", help="Only this one.")
@click.option("--flags", is_flag=True, help="Group flagged rows too.")
@click.option("--examples", type=click.IntRange(0, 100), default=3, show_default=True, help="Rows shown of each group.")
@click.option("--show-text", is_flag=True, help="Show prompts and answers of the examples.")
@click.option("--ids", metavar="FILE", help="Write the failing ids there, one JSON object a line; `-` and s3:// as in collect.")
@click.option("--force", is_flag=True, help="Replace a file of --ids that exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (stderr if the ids go to stdout).")
def failures(
    run: str, reason: str | None, flags: bool, examples: int, show_text: bool, ids: str | None, force: bool, as_json: bool
) -> None:
    """Group what failed in RUN by reason, with what the failing prompts share, examples and the remedy.

    Reads the store, so it can be asked at any time of a run, and after it.
    """
    settings = store_settings_of_command()
    store = open_store(settings)
    manifest = read_manifest(store, run)
    with open_output(ids, settings, force=force) if ids else nullcontext() as stream:
        report = examine_run(store, manifest, Wanted(reason, flags, examples), stream)
    if show_text:
        report.prompts = prompts_of_examples(store, report)
    report.parked = parked_batches(fleet_settings_if_given(), run)
    _tell(report, as_json, apart=ids == STDOUT)


def _tell(report: Report, as_json: bool, *, apart: bool) -> None:
    if as_json:
        click.echo(as_json_text(report.as_document()), err=apart)
        return
    console = Console(stderr=apart, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=apart, highlight=False, width=PLAIN_WIDTH)
    for part in parts(report):
        console.print(part, soft_wrap=not hasattr(part, "columns"))
