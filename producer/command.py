"""What every reading command does at its edges: settings from the environment, one JSON document, a progress line."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from workers.celery import (
    configure_logging,
    settings_from_environment,
    store_settings_from_environment,
    warn_of_misspelt_settings,
)
from workers.contract.errors import SettingsError
from workers.contract.settings import FleetSettings, StoreSettings

S = TypeVar("S", bound=StoreSettings)
T = TypeVar("T")

PLAIN_LINE_EVERY_S = 10.0


def settings_of_command() -> FleetSettings:
    """Settings of this process; logs go to stderr from here on.

    Raises:
        SettingsError: See there.
    """
    return _begun(settings_from_environment())


def store_settings_of_command() -> StoreSettings:
    """The same for a command that needs no Redis.

    Raises:
        SettingsError: See there.
    """
    return _begun(store_settings_from_environment())


def _begun(settings: S) -> S:
    configure_logging(settings)
    warn_of_misspelt_settings()
    return settings


def fleet_settings_if_given() -> FleetSettings | None:
    """Settings with a broker, if one is named: a command may tell more with it.

    Raises:
        SettingsError: They are wrong.
    """
    try:
        return settings_from_environment()
    except SettingsError as error:
        if error.found is None:
            return None
        raise


def as_json_text(document: object) -> str:
    """A document as JSON for people and scripts."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def print_json(document: object) -> None:
    """One document on stdout."""
    click.echo(as_json_text(document))


def with_progress(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Pass items on and show how many went by, on stderr: a bar on a terminal, else a line every ten seconds."""
    if sys.stderr.isatty():
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            for item in items:
                yield item
                progress.advance(task)
        return
    told_at = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        if time.monotonic() - told_at >= PLAIN_LINE_EVERY_S:
            told_at = time.monotonic()
            click.echo(f"{what}: {count:,} of {total:,}", err=True)
