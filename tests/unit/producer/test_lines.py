"""Files as lines: every archive and ordinary oddity is read, every file that cannot be is refused with one sentence."""

import contextlib
import gzip
import io
import os
import sys
import threading
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from producer.sources.lines import read_lines
from workers.contract.errors import SourceUnreadable

TEXT = b'{"a":1}\n{"b":2}\n'


def bodies(path: Path, **options: int) -> list[bytes]:
    return [line.body for line in read_lines((str(path),), **options)]


def gz(content: bytes) -> bytes:
    """Without the time of packing: it would stand in the names of the tests."""
    return gzip.compress(content, mtime=0)


def zstd(*parts: bytes, size: bool = True) -> bytes:
    return b"".join(zstandard.ZstdCompressor(write_content_size=size).compress(part) for part in parts)


def streamed_zstd(body: bytes) -> bytes:
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        writer.write(body)
    return out.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT.rstrip(b"\n"),
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        b"\n\n" + TEXT.replace(b"\n", b"  \t\n\n"),
        gz(TEXT),
        gz(TEXT[:8]) + gz(TEXT[8:]),
        gz(TEXT[:3]) + gz(TEXT[3:]),
        zstd(TEXT),
        zstd(TEXT[:8], TEXT[8:]),
        zstd(TEXT[:3], TEXT[3:]),
        streamed_zstd(TEXT),
        streamed_zstd(TEXT[:5]) + zstd(TEXT[5:], size=False),
        gz(b"\xef\xbb\xbf" + TEXT),
    ],
)
def test_the_same_lines_come_out_of_every_wrapping(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(content)
    assert bodies(path) == [b'{"a":1}', b'{"b":2}']


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\n\na\n\nb")
    assert [(line.number, line.body) for line in read_lines((str(path),))] == [(3, b"a"), (5, b"b")]


def test_a_line_of_a_megabyte_is_ordinary_and_a_longer_one_than_allowed_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "f"
    long = b"x" * 1_500_000
    path.write_bytes(b"a\n" + long + b"\nb\n" + b"y" * 5_000_000 + b"\nc\n" + b"z" * 3_000_000)
    found = list(read_lines((str(path),), max_line_bytes=2_000_000))
    assert [(line.number, len(line.body), line.too_long) for line in found] == [
        (1, 1, False),
        (2, 1_500_000, False),
        (3, 1, False),
        (4, 0, True),
        (5, 1, False),
        (6, 0, True),
    ]


def test_several_sources_are_one_stream_in_order(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a\n")
    (tmp_path / "two").write_bytes(gz(b"b\n"))
    found = list(read_lines((str(tmp_path / "two"), str(tmp_path / "one"))))
    assert [(Path(line.source).name, line.number, line.body) for line in found] == [("two", 1, b"b"), ("one", 1, b"a")]


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zstd(TEXT))))
    assert [line.body for line in read_lines(("-",))] == [b'{"a":1}', b'{"b":2}']


DAMAGED = "the archive is damaged or cut off"
UTF_16 = "this is UTF-16; convert it to UTF-8, for example with `iconv -f UTF-16 -t UTF-8`"
BINARY = "binary data, not JSON lines (begins with"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty, or blank lines only"),
        (b"\xef\xbb\xbf", "empty, or blank lines only"),
        (b"\n \r\n\t\n", "empty, or blank lines only"),
        (gz(b""), "empty, or blank lines only"),
        (zstd(b""), "empty, or blank lines only"),
        (
            gz(TEXT * 100)[:-9],
            f"{DAMAGED} (Compressed file ended before the end-of-stream marker was reached)",
        ),
        (gz(TEXT)[:-8] + bytes(8), f"{DAMAGED} (CRC check failed 0x0 != {zlib.crc32(TEXT):#x})"),
        (gz(TEXT) + b"more", f"{DAMAGED} (Not a gzipped file (b'mo'))"),
        (zstd(TEXT * 100)[:-3], f"{DAMAGED} (the last zstd frame has no end)"),
        (zstd(TEXT) + zstd(TEXT)[:-1], f"{DAMAGED} (the last zstd frame has no end)"),
        (zstd(TEXT) + b"more", f"{DAMAGED} (zstd decompressor error: Unknown frame descriptor)"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "this is a Git LFS pointer, not the file itself; `git lfs pull` fetches it",
        ),
        (TEXT.decode().encode("utf-16"), UTF_16),
        (b"\xfe\xff" + TEXT.decode().encode("utf-16-be"), UTF_16),
        (TEXT.decode().encode("utf-16-be"), f'{BINARY} \\x00{{\\x00"\\x00a\\x00"\\x00:\\x001\\x00}}\\x00\\x0a)'),
        (TEXT.decode().encode("utf-32"), "this is UTF-32; convert it to UTF-8"),
        (gz(TEXT.decode().encode("utf-32")), "this is UTF-32; convert it to UTF-8"),
        (b"PAR1\x15\x04\x15", "this is a Parquet file; convert it to JSON lines"),
        (b"ARROW1\0\0", "this is an Arrow file; convert it to JSON lines"),
        (b"PK\x03\x04rest", "this is a zip archive; unpack it, and give the JSON lines file in it"),
        (b"BZh91AY", "this is bzip2; unpack it, or compress it with gzip or zstd"),
        (b"\xfd7zXZ\0", "this is xz; unpack it, or compress it with gzip or zstd"),
        (b"SQLite format 3\0", "this is an SQLite database; export JSON lines"),
        (bytes(200), BINARY + " " + r"\x00" * 16 + ")"),
        (b'[{"a": 1}, {"b": 2}]', "this is a JSON array, not JSON lines; `jq -c '.[]'` converts it"),
        (b'\xef\xbb\xbf\n [\n{"a": 1}\n]', "this is a JSON array, not JSON lines; `jq -c '.[]'` converts it"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_whole_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "source.jsonl"
    path.write_bytes(content)
    with pytest.raises(SourceUnreadable) as caught:
        bodies(path)
    assert str(caught.value) == f"{path}: {sentence}; nothing was enqueued"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("packed", [gz(TEXT * 100), zstd(TEXT * 100), zstd(TEXT, TEXT)])
def test_an_archive_that_is_damaged_anywhere_gives_lines_or_one_refusal(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "source.jsonl"
    for place in range(4, len(packed)):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        with contextlib.suppress(SourceUnreadable):
            bodies(path)


def refused(source: str, *more: str) -> str:
    with pytest.raises(SourceUnreadable) as caught:
        list(read_lines((source, *more)))
    return str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refused(f"{tmp_path}/missing") == f"{tmp_path}/missing: no such file; nothing was enqueued"
    assert refused(str(tmp_path)) == f"{tmp_path}: a directory; name the files in it; nothing was enqueued"
    (tmp_path / "file").touch()
    assert refused(f"{tmp_path}/file/x") == f"{tmp_path}/file/x: cannot be opened (Not a directory); nothing was enqueued"
    assert refused("x" * 300) == f"{'x' * 300}: cannot be opened (File name too long); nothing was enqueued"
    assert refused("-", "-") == "-: standard input can be read once; name it once; nothing was enqueued"


def test_a_file_whose_name_is_not_unicode_is_read_and_named(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(path).write_bytes(b"a")
    assert [(line.source, line.body) for line in read_lines((path,))] == [(f"{tmp_path}/caf\\xe9", b"a")]


@pytest.mark.parametrize("content", [TEXT, gz(TEXT), zstd(TEXT), b"\xef\xbb\xbf" + TEXT])
def test_a_pipe_that_gives_a_byte_at_a_time_is_recognised(content: bytes) -> None:
    reading, writing = os.pipe()

    def write() -> None:
        for byte in content:
            os.write(writing, bytes([byte]))
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert [line.body for line in read_lines((f"/dev/fd/{reading}",))] == [b'{"a":1}', b'{"b":2}']
    finally:
        writer.join()
        os.close(reading)


def huge_line(wrapping: str) -> bytes:
    """A line of 200 MB, and one that is ordinary."""
    out = io.BytesIO()
    opened: Any = (
        gzip.GzipFile(fileobj=out, mode="wb")
        if wrapping == "gzip"
        else zstandard.ZstdCompressor().stream_writer(out, closefd=False)
    )
    with opened as writer:
        for _ in range(100):
            writer.write(b"x" * 2_000_000)
        writer.write(b"\nb\n")
    return out.getvalue()


@pytest.mark.parametrize("wrapping", ["gzip", "zstd"])
def test_a_huge_line_is_passed_over_without_being_held_in_memory(tmp_path: Path, wrapping: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(huge_line(wrapping))
    tracemalloc.start()
    try:
        found = list(read_lines((str(path),)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(line.number, line.body, line.too_long) for line in found] == [(1, b"", True), (2, b"b", False)]
    assert most < 120_000_000
