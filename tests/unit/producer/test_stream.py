"""Several sources as one stream: duplicates, figures, limits, and memory that stays flat."""

import gzip
import json
from pathlib import Path

import pytest

from producer.sources import stream as stream_module
from producer.sources.rejects import Reject
from producer.sources.stream import SourceStream
from workers.contract.schema import Prompt


def written(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_an_id_that_an_earlier_row_of_any_source_has_is_rejected(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"id": "a\u202e", "text": "1"}, {"id": 5, "text": "2"}, {"id": "5", "text": "3"})
    two = written(tmp_path / "two", {"id": "b", "text": "4"}, {"id": "a\u202e", "text": "5"}, {"id": 5, "text": "6"})
    stream = SourceStream((one, two))
    found = list(stream)
    assert [item.id for item in found if isinstance(item, Prompt)] == ["a\u202e", 5, "5", "b"]
    assert [item for item in found if isinstance(item, Reject)] == [
        Reject(two, 2, "duplicate_id", "a\\u202e", '{"id": "a\\u202e", "text": "5"}'),
        Reject(two, 3, "duplicate_id", "5", '{"id": 5, "text": "6"}'),
    ]
    assert (stream.accepted, stream.rejected, stream.rows, dict(stream.reasons)) == (4, 2, 6, {"duplicate_id": 2})
    assert dict(stream.shapes) == {"text": 4}


def test_rows_are_counted_through_rejects_and_sources(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one", {}, {"text": "a"}), written(tmp_path / "two", {"text": "b"})
    assert [item.row for item in SourceStream((one, two)) if isinstance(item, Prompt)] == [1, 2]


def test_a_file_and_its_archive_have_one_digest(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", {"text": "a"}, {"text": "b"})
    (tmp_path / "packed").write_bytes(gzip.compress(Path(plain).read_bytes()))
    streams = [SourceStream((plain,)), SourceStream((str(tmp_path / "packed"),))]
    for stream in streams:
        list(stream)
    assert streams[0].sha256 == streams[1].sha256
    assert streams[0].bytes_read == streams[1].bytes_read == len(Path(plain).read_bytes())


@pytest.mark.parametrize("limit", [1, 2, 3, 1000, 1001])
def test_a_limit_counts_accepted_rows_and_reads_no_further(tmp_path: Path, limit: int) -> None:
    source = written(tmp_path / "f", *({"text": "t"} if row % 2 else {} for row in range(3000)))
    stream = SourceStream((source, str(tmp_path / "missing")), limit)
    found = list(stream)
    assert (stream.accepted, len(found)) == (limit, 2 * limit)
    assert isinstance(found[-1], Prompt)


def test_rows_of_a_megabyte_are_taken_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path / "f", *({"text": "x" * 1_000_000} for _ in range(24)))
    taken: list[int] = []
    some = stream_module._some

    def watched(*arguments: object) -> object:
        lines = some(*arguments)  # type: ignore[arg-type]
        taken.append(len(lines))
        return lines

    monkeypatch.setattr(stream_module, "_some", watched)
    assert len(list(SourceStream((source,)))) == 24
    assert taken == [9, 9, 6, 0]
