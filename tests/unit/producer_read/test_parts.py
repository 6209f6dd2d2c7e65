"""The small parts of the reading commands."""

import pickle
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from producer.audit import audit
from producer.bitmap import Bitmap
from producer.collect.command import SameOutput, collect
from producer.collect.output import OutputExists, OutputUnwritable
from producer.command import with_progress
from producer.parallel import in_order
from producer.printable import printable
from producer.resume import resume
from producer.run_lock import RunBusy
from producer.runs import runs
from producer.status import OneDocument, status
from producer.status_text import duration, number, size


@given(st.text())
def test_what_is_shown_cannot_steer_a_terminal(text: str) -> None:
    assert printable(text, 1000).isprintable()


def test_what_is_shown_is_short_and_told() -> None:
    assert printable("a\nb\x1b[0m") == "a\\x0ab\\x1b[0m"
    assert printable("x" * 300) == "x" * 200 + "…"
    assert printable("日本 é") == "日本 é"
    assert printable("\U000e0001") == "\\U000e0001"


@given(st.integers(1, 200), st.data())
def test_a_bitmap_is_a_set(size: int, data: st.DataObject) -> None:
    numbers = data.draw(st.sets(st.integers(0, size - 1)))
    bitmap = Bitmap(size)
    for found in numbers:
        bitmap.add(found)
    assert list(bitmap.absent()) == sorted(set(range(size)) - numbers)
    assert len(bitmap) == len(numbers)
    assert all((found in bitmap) == (found in numbers) for found in range(size))
    assert list(Bitmap(size, bitmap.body()).absent()) == list(bitmap.absent())
    assert list(Bitmap.full(size).absent()) == []
    assert len(Bitmap.full(size)) == size


def test_a_bitmap_has_the_order_of_redis() -> None:
    bitmap = Bitmap(9)
    bitmap.add(0)
    bitmap.add(8)
    assert bitmap.body() == b"\x80\x80"


def test_results_come_in_order_and_few_are_read_ahead() -> None:
    begun = []

    def items() -> Iterator[int]:
        for item in range(100):
            begun.append(item)
            yield item

    results = in_order(lambda item: item * 2, items(), threads=4)
    assert next(results) == 0
    assert len(begun) <= 9
    assert list(results) == [item * 2 for item in range(1, 100)]


def test_an_error_ends_the_reading() -> None:
    results = in_order(lambda item: 1 // item, [1, 0, 1], threads=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        list(results)


def test_progress_is_told_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.command.PLAIN_LINE_EVERY_S", 0.0)
    assert list(with_progress(range(2), "audit r: batches", 2)) == [0, 1]
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "audit r: batches: 1 of 2\naudit r: batches: 2 of 2\n")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "?"), (12.4, "12 s"), (65, "1 min 05 s"), (3900, "1 h 05 min"), (270_000, "3 d 3 h")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(None, "?"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes(count: float | None, shown: str) -> None:
    assert size(count) == shown


def test_numbers() -> None:
    assert (number(None), number(1234567), number(0.456, 2)) == ("?", "1,234,567", "0.46")


@pytest.mark.parametrize(
    "error", [RunBusy("r", "host pid 1"), OutputExists("f"), OutputUnwritable("f", "full"), SameOutput("f"), OneDocument()]
)
def test_errors_cross_processes(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("command", [audit, collect, resume, runs, status])
def test_help_has_an_example(command: click.Command) -> None:
    told = CliRunner().invoke(command, ["--help"])
    assert told.exit_code == 0
    assert f"Example: producer {command.name}" in told.output
