"""`producer audit`: prove from the store alone that every prompt of a run has exactly one outcome."""

import sys
from collections.abc import Iterator, Sequence

import click

from producer.command import print_json, settings_of_command, store_settings_of_command, with_progress
from producer.findings import KINDS, Findings, examine, examine_repair
from producer.manifests import read_manifest, stored_shards
from producer.parallel import in_order
from producer.printable import counted, printable
from producer.rebuild import Rebuilt, rebuild_all
from producer.repairs import Layer, find_repairs
from producer.run_lock import run_lock
from producer.shards import BatchRead, prompt_name, read_batch
from workers.broker import broker_errors, connect
from workers.contract import errors
from workers.contract.errors import ShardCorrupt
from workers.contract.schema import Manifest, decode_completions
from workers.contract.settings import FleetSettings
from workers.store import ObjectStore, open_store

SHOWN_EXAMPLES = 5
_MEANING = {
    "missing": "prompts without an outcome",
    "doubled": "rows beyond the first of a prompt",
    "orphan": "rows that belong to no prompt",
    "corrupt": "prompts or counts that cannot be read or trusted",
}


def audit_run(store: ObjectStore, manifest: Manifest, repairs: Sequence[Manifest] = ()) -> Findings:
    """Read a run and its repairs wholly, batch by batch; memory does not grow with them.

    Raises:
        StoreUnavailable: The store stopped answering.
    """
    findings = Findings()
    layers = [Layer(examine_repair(_read(store, repair), manifest.samples, findings)) for repair in repairs]
    for read in with_progress(_read(store, manifest), f"audit {manifest.run}: batches", manifest.batches):
        findings.add(examine(read, manifest.samples, layers))
    for repair, layer in zip(repairs, layers, strict=True):
        layer.drain()
        if layer.strays:
            findings.told(
                f"{repair.run}: {layer.strays} of its prompts are none of the run's; `producer requeue` made no such repair"
            )
    for part in (manifest, *repairs):
        for number, info in stored_shards(store, part):
            if number is None:
                findings.add(_unknown_shard(store, info.key, manifest.samples))
    return findings


def _read(store: ObjectStore, manifest: Manifest) -> Iterator[BatchRead]:
    return in_order(lambda number: read_batch(store, manifest, number), range(manifest.batches))


def _unknown_shard(store: ObjectStore, key: str, samples: int) -> Findings:
    findings = Findings()
    findings.told(f"{key}: no batch of the manifest has this name; if nobody needs it, delete it")
    try:
        for completion in decode_completions(key, store.get(key) or b""):
            findings.found("orphan", prompt_name(completion, samples))
    except ShardCorrupt as error:
        findings.found("corrupt", key)
        findings.told(error)
    return findings


def as_document(manifest: Manifest, findings: Findings, repaired: Sequence[Rebuilt]) -> dict[str, object]:
    """The keys of DESIGN §10; `rows` is what the manifest promises: ok + failed + missing + corrupt, if no object is lost."""
    document: dict[str, object] = {
        "run": manifest.run,
        "clean": findings.clean,
        "rows": manifest.prompts,
        "ok": findings.ok,
        "failed": findings.failed,
        **{str(kind): count for kind, count in findings.counts.items()},
        "examples": findings.examples,
        "problems": findings.problems,
        "problems_left_out": findings.problems_left_out,
    }
    if repaired:
        base, *repairs = (rebuilt.as_document() for rebuilt in repaired)
        document["repaired"] = base | {"repairs": repairs}
    return document


def as_text(manifest: Manifest, findings: Findings) -> list[str]:
    """For people: a verdict, then what is wrong, with examples."""
    run = manifest.run
    if findings.clean:
        return [
            f"run {run} is clean: each of its {manifest.prompts:,} prompts has exactly one outcome",
            f"  {findings.ok:,} ok, {findings.failed:,} failed",
        ]
    lines = [_verdict(run, findings)]
    lines.append(f"  {counted(manifest.prompts, 'prompt')}, {findings.ok:,} ok, {findings.failed:,} failed")
    for kind in KINDS:
        if findings.counts[kind]:
            shown = [printable(name, 80) for name in findings.examples[kind][:SHOWN_EXAMPLES]]
            more = ", …" if findings.counts[kind] > len(shown) else ""
            lines.append(f"  {findings.counts[kind]:,} {kind} ({_MEANING[kind]}): {', '.join(shown)}{more}")
    lines += [f"  {printable(problem, 300)}" for problem in findings.problems[:SHOWN_EXAMPLES]]
    left = len(findings.problems) - SHOWN_EXAMPLES + findings.problems_left_out
    if left > 0:
        lines.append(f"  and {left:,} more; --json lists a hundred")
    if findings.counts["missing"]:
        lines.append(f"Next: `producer status {run}`; if nothing works on them, `producer resume {run}`")
    return lines


def _verdict(run: str, findings: Findings) -> str:
    if any(findings.counts[kind] for kind in KINDS if kind != "missing") or findings.problems:
        return f"run {run} is not clean"
    return (
        f"run {run} is not complete: {counted(findings.counts['missing'], 'prompt')} without an outcome, nothing else is wrong"
    )


@click.command(epilog="Example: producer audit my-run --json")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--repair", is_flag=True, help="Also compute the counters in Redis anew from the store.")
def audit(run: str, as_json: bool, repair: bool) -> None:
    """Prove from the store alone that every prompt of RUN has exactly one outcome.

    Lists missing, doubled, orphan and corrupt rows. Ends with 1 unless the run is clean.
    """
    fleet = settings_of_command() if repair else None
    store = open_store(fleet or store_settings_of_command())
    manifest = read_manifest(store, run)
    repairs = find_repairs(store, manifest)
    findings = audit_run(store, manifest, repairs)
    repaired = _repair(fleet, store, manifest, repairs) if fleet else []
    if as_json:
        print_json(as_document(manifest, findings, repaired))
    else:
        for line in as_text(manifest, findings):
            click.echo(line)
        for rebuilt in repaired:
            click.echo(f"counters of {rebuilt.run} in Redis computed anew: {rebuilt.sentence()}")
    if not findings.clean:
        sys.exit(errors.EXIT_FAILED)


def _repair(settings: FleetSettings, store: ObjectStore, manifest: Manifest, repairs: Sequence[Manifest]) -> list[Rebuilt]:
    client = connect(settings)
    with broker_errors(settings), run_lock(client, manifest.run):
        return rebuild_all(store, client, settings, manifest, repairs)
