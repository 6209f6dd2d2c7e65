"""Where collected rows go: a file, stdout, or an object. Never half an output under its final name.

A file is written under a temporary name in the same folder, flushed to the disk and renamed; an object is uploaded from a
finished temporary file. `.gz` and `.zst` at the end of the name compress.
"""

import gzip
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import zstandard

from workers.contract.errors import FleetError, UsageError
from workers.contract.settings import StoreSettings
from workers.store import open_store

STDOUT = "-"
_BUFFER_BYTES = 1 << 20


class OutputExists(UsageError):
    """The output is there already."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.target = target

    def __str__(self) -> str:
        return f"{self.target} exists; take another name, or replace it with --force"


class OutputUnwritable(FleetError):
    """The output cannot be written; nothing is left under its name."""

    def __init__(self, target: str, cause: str) -> None:
        super().__init__(target, cause)
        self.target, self.cause = target, cause

    def __str__(self) -> str:
        return f"cannot write {self.target}: {self.cause}; nothing was left under that name"


@contextmanager
def open_output(target: str, settings: StoreSettings, *, force: bool) -> Iterator[IO[bytes]]:
    """A stream whose bytes appear under `target` when the block ends without an error, and only then.

    Raises:
        OutputExists: It is there, and not `force`.
        OutputUnwritable: The folder is missing, the disk is full, and so on.
        StoreUnavailable: The object cannot be uploaded.
    """
    try:
        if target == STDOUT:
            with _compressed(target, sys.stdout.buffer) as stream:
                yield stream
            sys.stdout.buffer.flush()
        elif target.startswith("s3://"):
            with _object(target, settings, force) as stream:
                yield stream
        else:
            with _file(Path(target), force) as stream:
                yield stream
    except BrokenPipeError:  # `| head` has what it wants
        raise
    except OSError as error:
        raise OutputUnwritable(target, os.strerror(error.errno) if error.errno else str(error)) from error


@contextmanager
def _file(path: Path, force: bool) -> Iterator[IO[bytes]]:
    if path.is_dir():
        raise OutputUnwritable(str(path), "it is a folder")
    if path.exists() and not path.is_file():  # a device or a pipe: written into, never replaced
        with path.open("wb") as raw, _compressed(path.name, raw) as stream:
            yield stream
        return
    if path.exists() and not force:
        raise OutputExists(str(path))
    with _scratch(path.parent, path.name) as (scratch, stream):
        yield stream
        stream.close()
        if not force and path.exists():  # someone was faster; what they wrote stays
            raise OutputExists(str(path))
        scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _object(url: str, settings: StoreSettings, force: bool) -> Iterator[IO[bytes]]:
    parts = urlsplit(url)
    folder, _, name = parts.path.lstrip("/").rpartition("/")
    if not name:
        raise OutputUnwritable(url, "it names no object, expected s3://bucket/key")
    store = open_store(settings, f"s3://{parts.netloc}/{folder}")
    if not force and store.head(name) is not None:
        raise OutputExists(url)
    with _scratch(Path(tempfile.gettempdir()), name) as (scratch, stream):
        yield stream
        stream.close()
        store.put_file(name, scratch)


@contextmanager
def _scratch(folder: Path, name: str) -> Iterator[tuple[Path, IO[bytes]]]:
    handle, made = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=folder)
    scratch = Path(made)
    try:
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(0o666 & ~mask)  # mkstemp's 0600 is for secrets; this is an ordinary file
        with open(handle, "wb", buffering=_BUFFER_BYTES) as raw, ExitStack() as stack:  # noqa: PTH123  (a descriptor)
            stream = stack.enter_context(_compressed(name, raw))
            yield scratch, cast("IO[bytes]", _Finishing(stream, raw, stack))
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


class _Finishing:
    """A stream whose `close` ends the compression and brings everything to the disk."""

    def __init__(self, stream: IO[bytes], raw: IO[bytes], stack: ExitStack) -> None:
        self._stream, self._raw, self._stack = stream, raw, stack
        self.write = stream.write

    def close(self) -> None:
        self._stack.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())


@contextmanager
def _compressed(name: str, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    if name.endswith(".gz"):
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif name.endswith(".zst"):
        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as stream:
            yield cast("IO[bytes]", stream)
    else:
        yield raw
