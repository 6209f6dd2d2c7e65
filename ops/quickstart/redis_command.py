"""`ops redis`: a Redis for a fleet of one machine, in the foreground."""

import os
from pathlib import Path

import click

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
    click.echo(f"export FLEET_BROKER=redis://127.0.0.1:{port}/0    # data in {folder.absolute()}; Ctrl-C ends it")
    program, *arguments = redis_arguments(folder, port)
    os.execv(program, [program, *arguments])  # noqa: S606  (a program of ours, no shell)
