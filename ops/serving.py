"""A server of ours in the foreground, until it is told to end."""

import errno
import os
from typing import Any

import click
from aiohttp import web


def serve(application: web.Application, host: str, port: int, **options: Any) -> None:
    """Serve, and log no requests.

    Args:
        application: What to serve.
        host, port: Where.
        options: Of `web.run_app`.

    Raises:
        click.UsageError: The port is taken, or not ours to take.
    """
    try:
        web.run_app(application, host=host, port=port, print=None, access_log=None, shutdown_timeout=1.0, **options)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        raise click.UsageError(f"port {port} of {host}: {os.strerror(error.errno)}; choose another with --port") from error
