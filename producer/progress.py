"""Progress of an enqueue on stderr: a bar on a terminal, else a line every few seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from producer.enqueue import Watcher
from producer.sources.stream import SourceStream

PLAIN_LINE_EVERY_S = 5.0
LOOK_EVERY_ROWS = 256
MEGABYTE = 1_000_000


def figures(stream: SourceStream) -> str:
    """Rows, megabytes, rejects."""
    return f"{stream.rows:,} rows, {stream.bytes_read / MEGABYTE:,.1f} MB, {stream.rejected:,} rejected"


@contextmanager
def watching() -> Iterator[Watcher]:
    """A watcher that draws while the block runs."""
    if not sys.stderr.isatty():
        yield _Plain().watcher()
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _Bar(progress).watcher()


class _Plain:
    def __init__(self) -> None:
        self._stream: SourceStream | None = None
        self._what = ""
        self._rows = 0
        self._told_at = time.monotonic()

    def watcher(self) -> Watcher:
        return Watcher(stream=self._begin, row=self._row, waiting=self._tell)

    def _begin(self, stream: SourceStream, what: str) -> None:
        self._stream, self._what = stream, what

    def _row(self) -> None:
        self._rows += 1
        if self._rows % LOOK_EVERY_ROWS == 0 and self._stream is not None:
            self._tell(f"{self._what}: {figures(self._stream)}")

    def _tell(self, sentence: str) -> None:
        if time.monotonic() - self._told_at >= PLAIN_LINE_EVERY_S:
            self._told_at = time.monotonic()
            click.echo(sentence, err=True)


class _Bar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._stream: SourceStream | None = None
        self._what = ""
        self._rows = 0

    def watcher(self) -> Watcher:
        return Watcher(
            stream=self._begin,
            row=self._row,
            pushing=lambda total: self._progress.reset(self._task, total=total, description="pushing batches"),
            pushed=lambda count: self._progress.advance(self._task, count),
            waiting=lambda sentence: self._progress.update(self._task, description=sentence),
        )

    def _begin(self, stream: SourceStream, what: str) -> None:
        self._stream, self._what = stream, what

    def _row(self) -> None:
        self._rows += 1
        if self._rows % LOOK_EVERY_ROWS == 0 and self._stream is not None:
            self._progress.update(self._task, completed=self._stream.rows, description=f"{self._what}: {figures(self._stream)}")
