"""Files as lines: every archive and ordinary oddity is read, every file that cannot be is refused with one sentence."""

import gzip
import io
import sys
from pathlib import Path

import pytest
import zstandard

from producer.sources.lines import read_lines
from workers.contract.errors import SourceUnreadable

TEXT = b'{"a":1}\n{"b":2}\n'


def bodies(path: Path, **options: int) -> list[bytes]:
    return [line.body for line in read_lines((str(path),), **options)]


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
        gzip.compress(TEXT),
        gzip.compress(TEXT[:8]) + gzip.compress(TEXT[8:]),
        gzip.compress(TEXT[:3]) + gzip.compress(TEXT[3:]),
        zstd(TEXT),
        zstd(TEXT[:8], TEXT[8:]),
        zstd(TEXT[:3], TEXT[3:]),
        streamed_zstd(TEXT),
        streamed_zstd(TEXT[:5]) + zstd(TEXT[5:], size=False),
        gzip.compress(b"\xef\xbb\xbf" + TEXT),
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
    (tmp_path / "two").write_bytes(gzip.compress(b"b\n"))
    found = list(read_lines((str(tmp_path / "two"), str(tmp_path / "one"))))
    assert [(Path(line.source).name, line.number, line.body) for line in found] == [("two", 1, b"b"), ("one", 1, b"a")]


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(zstd(TEXT))))
    assert [line.body for line in read_lines(("-",))] == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty, or blank lines only"),
        (b"\n \r\n\t\n", "empty, or blank lines only"),
        (gzip.compress(b""), "empty, or blank lines only"),
        (gzip.compress(TEXT * 100)[:-9], "the archive is damaged or cut off"),
        (gzip.compress(TEXT * 100)[:20] + b"garbage" * 9, "the archive is damaged or cut off"),
        (zstd(TEXT * 100)[:-3], "the archive is damaged or cut off (the last zstd frame has no end)"),
        (zstd(TEXT)[:8] + b"garbage" * 9, "the archive is damaged or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer, not the file itself"),
        (TEXT.decode().encode("utf-16"), "UTF-16; convert it to UTF-8"),
        (TEXT.decode().encode("utf-16-be"), "binary data, not JSON lines"),
        (TEXT.decode().encode("utf-32"), "UTF-32; convert it to UTF-8"),
        (b"PAR1\x15\x04\x15", "a Parquet file; convert it to JSON lines"),
        (b"ARROW1\0\0", "an Arrow file; convert it to JSON lines"),
        (b"PK\x03\x04rest", "a zip archive; unpack it"),
        (b"BZh91AY", "bzip2; unpack it"),
        (b"\xfd7zXZ\0", "xz; unpack it"),
        (bytes(range(32)) * 8 + bytes(200), "binary data, not JSON lines (begins with \\x00\\x01"),
        (b'[{"a": 1}, {"b": 2}]', "a JSON array, not JSON lines; `jq -c '.[]'` converts it"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_whole_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "source.jsonl"
    path.write_bytes(content)
    with pytest.raises(SourceUnreadable) as caught:
        bodies(path)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("; nothing was enqueued")
    assert caught.value.exit_code == 2


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match="no such file"):
        bodies(tmp_path / "missing")
    with pytest.raises(SourceUnreadable, match="a directory; name the files in it"):
        bodies(tmp_path)
