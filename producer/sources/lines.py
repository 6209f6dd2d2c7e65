"""Sources as streams of lines: plain, gzip or zstd, recognised by content. Flat memory, whatever the file holds.

Knows bytes and archives; knows nothing of JSON. A file that cannot be read as a whole is refused with one sentence.
"""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

import zstandard

from producer.printable import printable
from workers.contract.errors import SourceUnreadable

MAX_LINE_BYTES = 16 << 20
"""No prompt of a context of millions of tokens is longer; a longer line is a mistake or an attack."""
CHUNK_BYTES = 1 << 20
PACKED_BYTES = 1 << 10
"""Of zstd at a time: it may unpack to 32 thousand times as much at once."""
HEAD_BYTES = 4096
STDIN = "-"

_BOM = b"\xef\xbb\xbf"
_REFUSED = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the file itself; `git lfs pull` fetches it"),
    (b"\xff\xfe\x00\x00", "UTF-32; convert it to UTF-8"),
    (b"\xff\xfe", "UTF-16; convert it to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16; convert it to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"),
    (b"PAR1", "a Parquet file; convert it to JSON lines"),
    (b"ARROW1", "an Arrow file; convert it to JSON lines"),
    (b"PK\x03\x04", "a zip archive; unpack it, and give the JSON lines file in it"),
    (b"BZh", "bzip2; unpack it, or compress it with gzip or zstd"),
    (b"\xfd7zXZ", "xz; unpack it, or compress it with gzip or zstd"),
    (b"SQLite format 3", "an SQLite database; export JSON lines"),
)


@dataclass(frozen=True)
class Line:
    """One line that is not blank, without its end. `number` counts from 1 in its source; `too_long` has no body."""

    source: str
    number: int
    body: bytes
    too_long: bool = False


def read_lines(sources: tuple[str, ...], max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Lines of all sources, in order; blank ones are left out but counted.

    Args:
        sources: Paths, or `-` for standard input.
        max_line_bytes: A longer line is told as too long and passed over.

    Raises:
        SourceUnreadable: A source is missing, empty, damaged, or not text.
    """
    if sources.count(STDIN) > 1:
        raise SourceUnreadable(STDIN, "standard input can be read once; name it once")
    for source in sources:
        yield from _lines_of(source, max_line_bytes)


def source_name(source: str) -> str:
    """A path as text: names of files need not be Unicode, what is stored of them must be."""
    return os.fsencode(source).decode(errors="backslashreplace")


def _lines_of(path: str, max_line_bytes: int) -> Iterator[Line]:
    source = source_name(path)
    with _opened(path, source) as raw:
        found = False
        try:
            for line in _split(source, _unpacked(source, raw), max_line_bytes):
                found = True
                yield line
        except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
            raise SourceUnreadable(source, f"the archive is damaged or cut off ({error})") from error
        except OSError as error:
            raise SourceUnreadable(source, f"cannot be read ({error.strerror or error})") from error
    if not found:
        raise SourceUnreadable(source, "empty, or blank lines only")


def _opened(path: str, source: str) -> io.BufferedReader:
    try:
        file = sys.stdin.buffer if path == STDIN else io.BufferedReader(io.FileIO(path))
    except IsADirectoryError as error:
        raise SourceUnreadable(source, "a directory; name the files in it") from error
    except FileNotFoundError as error:
        raise SourceUnreadable(source, "no such file") from error
    except OSError as error:
        raise SourceUnreadable(source, f"cannot be opened ({error.strerror})") from error
    # A pipe may give a byte at a time; a reader of a reader waits until there is enough to recognise what it is.
    return io.BufferedReader(cast("io.RawIOBase", file), HEAD_BYTES * 4)


def _unpacked(source: str, raw: io.BufferedReader) -> Iterator[bytes]:
    head = raw.peek(HEAD_BYTES)
    if head.startswith(b"\x1f\x8b"):
        return _checked(source, _chunks(cast("BinaryIO", gzip.GzipFile(fileobj=raw))))
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return _checked(source, _zstd_chunks(raw))
    return _checked(source, _chunks(cast("BinaryIO", raw)))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _zstd_chunks(raw: io.BufferedReader) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor().decompressobj(read_across_frames=False)
    whole = True
    parts: list[bytes] = []
    held = 0
    while packed := raw.read(PACKED_BYTES):
        while packed:
            if decompressor.eof:
                decompressor, whole = zstandard.ZstdDecompressor().decompressobj(read_across_frames=False), True
            whole = False
            parts.append(decompressor.decompress(packed))
            held += len(parts[-1])
            if held >= CHUNK_BYTES:
                yield b"".join(parts)
                parts, held = [], 0
            packed, whole = decompressor.unused_data, decompressor.eof
    if held:
        yield b"".join(parts)
    if not whole:
        raise EOFError("the last zstd frame has no end")


def _checked(source: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    for mark, what in _REFUSED:
        if first.startswith(mark):
            raise SourceUnreadable(source, f"this is {what}")
    first = first.removeprefix(_BOM)
    head = first[:HEAD_BYTES]
    if head.lstrip()[:1] == b"[":
        raise SourceUnreadable(source, "this is a JSON array, not JSON lines; `jq -c '.[]'` converts it")
    if head.count(0) > len(head) // 10:
        raise SourceUnreadable(source, f"binary data, not JSON lines (begins with {printable(head[:16].decode('latin-1'))})")
    yield first
    yield from chunks


def _split(source: str, chunks: Iterator[bytes], max_line_bytes: int) -> Iterator[Line]:
    rest, number, skipping = b"", 0, False
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
        for body in complete:
            number += 1
            if skipping or len(body) > max_line_bytes:
                skipping = False
                yield Line(source, number, b"", too_long=True)
            elif stripped := body.strip():
                yield Line(source, number, stripped)
        if len(rest) > max_line_bytes:
            rest, skipping = b"", True
        elif skipping:
            rest = b""
    if skipping:
        yield Line(source, number + 1, b"", too_long=True)
    elif stripped := rest.strip():
        yield Line(source, number + 1, stripped)
