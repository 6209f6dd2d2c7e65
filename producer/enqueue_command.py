"""`producer enqueue`: its options, its progress on stderr, and what it prints."""

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from producer.command import print_json, settings_of_command
from producer.enqueue import Enqueued, Order, Watcher
from producer.enqueue import enqueue as enqueue_run
from producer.printable import counted, printable
from producer.progress import watching
from producer.publish import DEFAULT_MAX_QUEUED
from producer.sources.plain import PROMPT_FIELDS
from producer.sources.rejects import Reject
from producer.sources.sampling import SAMPLING_FIELDS, problem_with
from producer.sources.stream import SourceStream
from producer.upload import REJECTS_SHOWN
from workers.broker import connect_patiently
from workers.contract import layout, names
from workers.contract.errors import RowRejected, SourceUnreadable
from workers.contract.request import request_of
from workers.contract.schema import Prompt, Sampling
from workers.contract.wording import mistake_of
from workers.store import open_store

DEFAULT_MAX_TOKENS = 2048
IGNORED_SHOWN = 10
SHOWN_BODY_CHARACTERS = 2000


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say how to generate."""
    options = [
        click.option(
            "--max-tokens", type=int, help=f"Longest answer, in tokens; always sent.  [default: {DEFAULT_MAX_TOKENS}]"
        ),
        click.option("--temperature", type=float, help="0 is greedy; not sent if not given."),
        click.option("--top-p", type=float),
        click.option("--top-k", type=int),
        click.option("--min-p", type=float),
        click.option("--presence-penalty", type=float),
        click.option("--frequency-penalty", type=float),
        click.option("--repetition-penalty", type=float),
        click.option("--stop", multiple=True, help="A string that ends an answer; may be given several times."),
        click.option("--seed", type=int, help="Engines heed it with --enable-deterministic-inference only."),
        click.option("--thinking", type=click.Choice(["on", "off"]), help="Told to the chat template as enable_thinking."),
        click.option(
            "--sampling",
            "sampling_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A TOML file of these values (max_tokens = 512, …); options override it, values in a row override both.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def run_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """A name that can stand in a key of the store."""
    if not names.RUN_NAME.fullmatch(value):
        raise click.BadParameter(
            "expected up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        )
    return value


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "--run", required=True, callback=run_name, help="Name of the run; the same command twice pushes only what is missing."
)
@sampling_options
@click.option("--model", help="What the engines serve, for the record; sent as `model` with chat requests.")
@click.option("--batch-size", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Prompts in a batch.")
@click.option("--samples", type=click.IntRange(1, 1000), default=1, show_default=True, help="Generate each row so often.")
@click.option("--limit", type=click.IntRange(1), help="Take the first so many rows that are accepted.")
@click.option(
    "--priority",
    type=click.IntRange(0, names.PRIORITY_LEVELS - 1),
    default=names.DEFAULT_PRIORITY,
    show_default=True,
    help="9 is served first.",
)
@click.option(
    "--max-queued",
    type=click.IntRange(2),
    default=DEFAULT_MAX_QUEUED,
    show_default=True,
    help="Wait while so many batches wait in the queue, until half of them do.",
)
@click.option("--strict", is_flag=True, help="Enqueue nothing if any row is rejected.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, write nothing, show the first request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def enqueue(
    sources: tuple[str, ...], run: str, strict: bool, dry_run: bool, as_json: bool, max_queued: int, **options: Any
) -> None:
    """Turn files of prompts into a run, and push its batches.

    SOURCE is a file of JSON lines (plain, gzip or zstd), or - for standard input; several are one stream. A row holds OpenAI
    messages, an OpenAI Batch request, a prompt or text, or input_ids. Rows that cannot be accepted are told and left out.

    Example: producer enqueue prompts.jsonl.gz --run my-run --max-tokens 4096 --temperature 0.7 --thinking on
    """
    order = Order(
        run=run,
        sources=sources,
        sampling=sampling_of(options),
        model=options["model"],
        batch_size=options["batch_size"],
        samples=options["samples"],
        limit=options["limit"],
        priority=options["priority"],
        max_queued=max_queued,
        strict=strict,
    )
    if dry_run:
        rehearse(order, as_json=as_json)
        return
    settings = settings_of_command()
    if settings.broker_url.unprotected:
        click.echo("warning: Redis has no password, and is not on this machine's loopback (SECURITY.md)", err=True)
    with watching() as watcher:
        done = enqueue_run(order, open_store(settings), connect_patiently(settings), settings, watcher)
    if as_json:
        print_json(done.as_document())
    else:
        tell(done, settings.store)


def sampling_of(options: dict[str, Any]) -> Sampling:
    """Sampling from file and options.

    Raises:
        click.UsageError: A value out of range, or an unknown name in the file; names it.
    """
    values: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS}
    path: Path | None = options["sampling_file"]
    if path is not None:
        try:
            values |= msgspec.to_builtins(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Sampling))
        except msgspec.ValidationError as error:
            mistake = mistake_of(error, Sampling.__struct_fields__)
            raise click.UsageError(f"{path}: {mistake.sentence() if mistake else error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{path}: {error}") from error
    given = {name: options[name] for name in Sampling.__struct_fields__ if options[name] not in {None, ()}}
    if "thinking" in given:
        given["thinking"] = given["thinking"] == "on"
    sampling = msgspec.convert(values | given, Sampling)
    problem = problem_with(sampling)
    if problem is not None:
        raise click.UsageError(problem)
    return sampling


def tell(done: Enqueued, store_url: str) -> None:
    """The summary, for people."""
    manifest = done.manifest
    click.echo(
        f"run {manifest.run}: {counted(manifest.accepted, 'row')} accepted, {manifest.rejected:,} rejected, "
        f"{counted(manifest.prompts, 'prompt')} in {counted(manifest.batches, 'batch')}"
    )
    click.echo(f"{counted(done.pushed, 'batch')} pushed, {done.already_done:,} done already; the run is {done.status}")
    tell_rejects(manifest.reject_reasons, done.first_rejects, manifest.rejected)
    if manifest.rejected:
        click.echo(f"  all of them: {store_url.rstrip('/')}/{layout.rejected(manifest.run)}")
    tell_ignored(done.ignored)
    click.echo(f"next: producer status {manifest.run} --watch")


def tell_rejects(reasons: dict[str, int], first: list[Reject], total: int) -> None:
    """Rejects by reason, and the first of them."""
    if not total:
        return
    click.echo("rejected: " + ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items())))
    for reject in first:
        click.echo(f"  {printable(reject.sentence(), 240)}")
    if total > len(first):
        click.echo(f"  … and {total - len(first):,} more")


def tell_ignored(ignored: Mapping[str, int]) -> None:
    """Fields that change nothing: columns of a data set, or misspelt ones."""
    if not ignored:
        return
    known = sorted(SAMPLING_FIELDS | set(PROMPT_FIELDS) | {"tools", "id"})
    shown = []
    for name, count in sorted(ignored.items(), key=lambda item: (-item[1], item[0]))[:IGNORED_SHOWN]:
        shown.append(f"{printable(name, 60)} in {counted(count, 'row')}{_hint(name, known)}")
    more = f" and {len(ignored) - IGNORED_SHOWN:,} more" if len(ignored) > IGNORED_SHOWN else ""
    click.echo(f"fields that change nothing: {', '.join(shown)}{more}")


def _hint(name: str, known: list[str]) -> str:
    if name == "n":
        return " (--samples generates rows several times)"
    if name in known:
        return " (another field holds the prompt)"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f" (did you mean {near[0]}?)" if near else ""


def rehearse(order: Order, *, as_json: bool) -> None:
    """`--dry-run`: read everything, write nothing."""
    stream = SourceStream(order.sources, order.limit)
    first: Prompt | None = None
    rejects: list[Reject] = []
    watcher: Watcher
    with watching() as watcher:
        watcher.stream(stream, "reading")
        for outcome in stream:
            watcher.row()
            if isinstance(outcome, Prompt):
                first = first or outcome
            elif len(rejects) < REJECTS_SHOWN:
                rejects.append(outcome)
    if order.strict and rejects:
        raise RowRejected(stream.rejected, stream.accepted, rejects[0].sentence())
    if first is None:
        raise SourceUnreadable(
            ", ".join(order.sources),
            f"no row could be accepted ({stream.rejected} rejected, the first: {rejects[0].sentence()})",
        )
    sampling = order.sampling if first.sampling is None else order.sampling.overridden_by(first.sampling)
    path, body = request_of(first, sampling, order.model)
    prompts = stream.accepted * order.samples
    document = {
        "run": order.run,
        "dry_run": True,
        "accepted": stream.accepted,
        "rejected": stream.rejected,
        "reasons": dict(stream.reasons),
        "batches": -(-prompts // order.batch_size),
        "prompts": prompts,
        "pushed": 0,
        "already_done": 0,
        "ignored_fields": dict(stream.ignored),
        "recognised": dict(stream.shapes),
        "first_request": {"path": path, "body": msgspec.json.decode(body)},
    }
    if as_json:
        print_json(document)
        return
    shapes = ", ".join(f"{counted(count, 'row')} of {shape}" for shape, count in stream.shapes.items())
    batches = counted(-(-prompts // order.batch_size), "batch")
    click.echo(f"recognised: {shapes}; {stream.rejected:,} rejected; {batches}. Nothing was written.")
    tell_rejects(dict(stream.reasons), rejects, stream.rejected)
    tell_ignored(stream.ignored)
    click.echo(f"the first request, as it will be sent to {path}:")
    click.echo(printable_json(body))


def printable_json(body: bytes) -> str:
    """A request body for people, cut where it is very long."""
    text = msgspec.json.format(body, indent=2).decode()
    shown = "\n".join(printable(line, 400) for line in text.splitlines())
    return shown if len(shown) <= SHOWN_BODY_CHARACTERS else shown[:SHOWN_BODY_CHARACTERS] + " …"
