"""`producer collect`: one row per accepted prompt, in the order of the source, in flat memory."""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Literal, cast

import click

from producer.collect.joining import Joined, joined_batches, require_complete
from producer.collect.native import native_row
from producer.collect.openai_batch import openai_batch_row
from producer.collect.output import STDOUT, open_output
from producer.collect.rows import Format, Place
from producer.command import as_json_text, store_settings_of_command, with_progress
from producer.manifests import read_manifest
from producer.printable import counted
from producer.repairs import find_repairs
from workers.contract.errors import UsageError
from workers.contract.schema import Completion, Manifest
from workers.store import open_store

FORMATS: dict[str, Format] = {"jsonl": native_row, "openai-batch": openai_batch_row}
Only = Literal["all", "ok", "failed"]


class SameOutput(UsageError):
    """`--errors` names the output itself."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return f"--errors and -o both name {self.target}; failed rows go into the output anyway if --errors is left out"


@dataclass
class Collected:
    """What was written. `pending` rows are written as they are, and a repair under way will replace them."""

    rows: int = 0
    ok: int = 0
    failed: int = 0
    missing: int = 0
    pending: int = 0
    written_bytes: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Choice:
    """What the user wants of each row."""

    write_row: Format
    only: Only
    with_input: bool


def write_batch(
    batch: Joined, manifest: Manifest, choice: Choice, out: IO[bytes], errors: IO[bytes] | None, collected: Collected
) -> None:
    """Write the rows of one batch, and count them."""
    lines: list[bytes] = []
    failed_lines: list[bytes] = []
    for outcome, pending in batch.outcomes:
        prompt, completion, place = outcome.prompt, outcome.completion, Place(manifest, outcome.batch)
        collected.pending += pending
        if completion is None:
            collected.missing += 1
        elif choice.only in ("all", completion.status):
            apart = errors is not None and completion.status == "failed"
            (failed_lines if apart else lines).append(
                choice.write_row(place, prompt, completion, with_input=choice.with_input) + b"\n"
            )
            _count(collected, completion)
    for stream, chosen in ((out, lines), (errors, failed_lines)):
        if stream is not None and chosen:
            text = b"".join(chosen)
            stream.write(text)
            collected.written_bytes += len(text)


def _count(collected: Collected, completion: Completion) -> None:
    collected.rows += 1
    if completion.status == "ok":
        collected.ok += 1
    else:
        collected.failed += 1
        collected.reasons[completion.reason or ""] += 1


@click.command(epilog="Example: producer collect my-run -o completions.jsonl.zst")
@click.argument("run")
@click.option("-o", "--output", required=True, help="File, `-` for stdout, or s3://bucket/key; .gz and .zst compress.")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), default="jsonl", show_default=True)
@click.option("--only", type=click.Choice(["all", "ok", "failed"]), default="all", show_default=True, help="Which rows.")
@click.option("--errors", "errors_to", metavar="FILE", help="Failed rows go here instead.")
@click.option("--with-input", is_flag=True, help="Add the prompt to each row, under `input`.")
@click.option("--partial", is_flag=True, help="Take what is in the store of a run that is not complete.")
@click.option("--force", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout (stderr if the rows go to stdout).")
def collect(
    run: str,
    output: str,
    format_name: str,
    only: str,
    errors_to: str | None,
    with_input: bool,
    partial: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write one row per accepted prompt of RUN, in the order of the source."""
    settings = store_settings_of_command()
    if errors_to == output:
        raise SameOutput(output)
    store = open_store(settings)
    manifest = read_manifest(store, run)
    repairs = find_repairs(store, manifest)
    if not partial:
        require_complete(store, manifest, repairs)
    begun = time.monotonic()
    collected = Collected()
    choice = Choice(FORMATS[format_name], cast("Only", only), with_input)
    with ExitStack() as stack:
        errors = stack.enter_context(open_output(errors_to, settings, force=force)) if errors_to else None
        out = stack.enter_context(open_output(output, settings, force=force))
        for batch in with_progress(joined_batches(store, manifest, repairs), f"collect {run}: batches", manifest.batches):
            write_batch(batch, manifest, choice, out, errors, collected)
    _tell(manifest, output, errors_to, collected, time.monotonic() - begun, as_json)


def _tell(manifest: Manifest, output: str, errors_to: str | None, collected: Collected, wall_s: float, as_json: bool) -> None:
    if as_json:
        document = {
            "run": manifest.run,
            "output": output,
            "errors": errors_to,
            "rows": collected.rows,
            "ok": collected.ok,
            "failed": collected.failed,
            "missing": collected.missing,
            "pending": collected.pending,
            "failures": collected.reasons,
            "bytes": collected.written_bytes,
            "wall_s": round(wall_s, 3),
        }
        click.echo(as_json_text(document), err=output == STDOUT)
        return
    speed = collected.written_bytes / 1e6 / max(wall_s, 1e-6)
    where = "stdout" if output == STDOUT else output
    failed = f"{collected.failed:,} failed"
    if errors_to is None:
        written = f"{counted(collected.rows, 'row')} of run {manifest.run} to {where}: {collected.ok:,} ok, {failed}"
    else:
        written = f"{counted(collected.ok, 'row')} of run {manifest.run} to {where}, {failed} to {errors_to}"
    missing = f", {counted(collected.missing, 'prompt')} without an outcome yet" if collected.missing else ""
    pending = f", {collected.pending:,} will be replaced by a repair under way" if collected.pending else ""
    click.echo(f"{written}{missing}{pending}; {collected.written_bytes:,} bytes before compression, {speed:.0f} MB/s", err=True)
