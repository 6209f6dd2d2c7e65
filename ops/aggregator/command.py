"""`ops aggregator`: reads Redis, tells the fleet's figures over HTTP, and writes progress.json."""

import os

import click

from ops.aggregator.server import application
from ops.aggregator.settings import AggregatorSettings
from ops.aggregator.watch import Watch
from ops.serving import serve
from workers.broker import broker_errors, connect
from workers.celery import configure_logging, settings_from_environment, warn_of_misspelt_settings
from workers.contract.broker_url import is_loopback
from workers.contract.settings import read_settings
from workers.store import open_store


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65_535), default=5556, show_default=True)
@click.option("--without-login", is_flag=True, help="Let everybody read who reaches a --host that is not the loopback.")
def aggregator(host: str, port: int, without_login: bool) -> None:
    """Tell rate, time left, cost, bottlenecks and alarms of the whole fleet.

    GET /api/fleet, /api/runs/RUN and /metrics; runs/RUN/progress.json in the store every half minute. Reads Redis only, and may
    be stopped and started at any time. Off the loopback it wants FLEET_PAGE_LOGIN=user:password, or --without-login.

    Example: ops aggregator --port 5556
    """
    settings = settings_from_environment()
    own = read_settings(AggregatorSettings, os.environ)
    configure_logging(settings)
    warn_of_misspelt_settings()
    if not is_loopback(host) and own.page_login is None and not without_login:
        raise click.UsageError(f"--host {host} is open to others: set FLEET_PAGE_LOGIN=user:password, or say --without-login")
    client = connect(settings)
    with broker_errors(settings):
        client.ping()
    watch = Watch(client, open_store(settings), own.usd_per_hour)
    click.echo(f"figures at http://{host}:{port}/api/fleet, metrics at /metrics; Ctrl-C ends it", err=True)
    serve(application(watch, own.page_login), host, port)
