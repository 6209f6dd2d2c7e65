"""`ops redis`: a Redis for a fleet of one machine, in the foreground."""

import fcntl
import os
from pathlib import Path

import click

from ops.quickstart.processes import listens
from ops.quickstart.servers import redis_arguments


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("redis-data"),
    show_default=True,
    help="Its data.",
)
@click.option("--port", type=click.IntRange(1, 65_535), default=6379, show_default=True)
def redis(folder: Path, port: int) -> None:
    """Serve Redis on 127.0.0.1 as a fleet wants it: append-only file on, nothing evicted.

    For one machine, and for a first try. A fleet of several machines needs a Redis of its own, with a password.

    Example: ops redis --folder redis-data --port 6379
    """
    folder.mkdir(parents=True, exist_ok=True)
    if listens(port):
        raise click.UsageError(f"port {port} is in use; choose another with --port")
    _lock(folder)
    click.echo(f"export FLEET_BROKER=redis://127.0.0.1:{port}/0    # data in {folder.absolute()}; Ctrl-C ends it")
    program, *arguments = redis_arguments(folder, port)
    os.execv(program, [program, *arguments])  # noqa: S606  (a program of ours, no shell)


def _lock(folder: Path) -> None:
    """Two servers that append to one file mix their histories; the lock lives as long as the server does."""
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(handle, True)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise click.UsageError(f"another Redis serves from {folder.absolute()}; choose another --folder") from error
