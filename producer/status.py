"""`producer status`: how far a run is, how fast, until when. Reads Redis; the store only if Redis does not know the run."""

import sys
import time

import click
import redis
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from producer.command import PLAIN_LINE_EVERY_S, print_json, settings_of_command
from producer.manifests import read_manifest
from producer.status_text import line, lines, screen
from workers.broker import broker_errors, connect
from workers.contract.errors import EXIT_FAILED, BrokerUnavailable, UsageError
from workers.contract.schema import Manifest
from workers.contract.settings import FleetSettings
from workers.progress.figures import document_of, document_of_forgotten, forgotten
from workers.progress.run_state import RunState, read_run
from workers.store import open_store

WATCH_EVERY_S = 2.0


class OneDocument(UsageError):
    """`--json` and `--watch` together."""

    def __str__(self) -> str:
        return "--json prints one document and --watch prints again and again; take one of them"


def look(settings: FleetSettings, client: "redis.Redis", run: str) -> RunState | Manifest:
    """The run as Redis knows it, else its manifest.

    Raises:
        BrokerUnavailable: Redis is away.
        RunUnknown: Neither Redis nor the store knows it.
        StoreUnavailable: Redis does not know it, and the store is away.
    """
    with broker_errors(settings):
        state = read_run(client, run)
    return state or read_manifest(open_store(settings), run)


@click.command(epilog="Example: producer status my-run --watch")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds until the run has ended.")
def status(run: str, as_json: bool, watch: bool) -> None:
    """Tell how far RUN is, how fast, and until when."""
    settings = settings_of_command()
    if as_json and watch:
        raise OneDocument
    client = connect(settings)
    if watch:
        _watch(settings, client, run)
        return
    found = look(settings, client, run)
    if isinstance(found, Manifest):
        if as_json:
            print_json(document_of_forgotten(found))
        click.echo(forgotten(run), err=as_json)
        sys.exit(EXIT_FAILED)
    elif as_json:
        print_json(document_of(found))
    else:
        click.echo("\n".join(lines(found, document_of(found))))


def _watch(settings: FleetSettings, client: "redis.Redis", run: str) -> None:
    console = Console()
    try:
        if console.is_terminal:
            _watch_on_terminal(settings, client, run, console)
        else:
            _watch_in_lines(settings, client, run)
    except KeyboardInterrupt:
        sys.exit(0)


def _watch_on_terminal(settings: FleetSettings, client: "redis.Redis", run: str, console: Console) -> None:
    found = look(settings, client, run)
    with Live(_view(found), console=console, auto_refresh=False) as live:
        while isinstance(found, Manifest) or not found.ended:
            time.sleep(WATCH_EVERY_S)
            try:
                found = look(settings, client, run)
                live.update(_view(found), refresh=True)
            except BrokerUnavailable as error:  # a watch outlives a restart of Redis
                live.update(Text(f"{error}; trying again"), refresh=True)


def _watch_in_lines(settings: FleetSettings, client: "redis.Redis", run: str) -> None:
    """One line every ten seconds of progress, and whenever a state changes, for a log; the whole status at the end."""
    before: object = None
    told_at, last = 0.0, ""
    while True:
        try:
            found = look(settings, client, run)
            told = forgotten(run) if isinstance(found, Manifest) else line(found, document_of(found))
        except BrokerUnavailable as error:
            found, told = None, f"{error}; trying again"
        if isinstance(found, RunState) and found.ended:
            click.echo("\n".join(lines(found, document_of(found))))
            return
        states = told if found is None else _states(found)
        if states != before or (told != last and time.monotonic() - told_at >= PLAIN_LINE_EVERY_S):
            click.echo(f"{time.strftime('%H:%M:%S')} {told}")
            before, last, told_at = states, told, time.monotonic()
        time.sleep(WATCH_EVERY_S)


def _states(found: RunState | Manifest) -> object:
    """What a reader of a log wants to know at once when it changes."""
    if isinstance(found, Manifest):
        return found.run
    return found.status, len(found.parked), [(worker.name, worker.state, worker.cause) for worker in found.workers]


def _view(found: RunState | Manifest) -> RenderableType:
    return Text(forgotten(found.run)) if isinstance(found, Manifest) else screen(found, document_of(found))
