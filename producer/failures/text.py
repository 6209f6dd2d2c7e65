"""The failures of a run for people. Knows words and widths; decides nothing."""

from collections.abc import Iterator

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from producer.failures.groups import Example, Group, Kind
from producer.failures.remedies import remedy_of
from producer.failures.report import SHOWN_MESSAGES, Report, prompt_document
from producer.failures.sharing import ALPHA, Shared
from producer.printable import counted, printable

SHOWN_SHARED = 8
SHOWN_PARKED = 5
_TEXT_CHARS = 2000


def parts(report: Report) -> Iterator[RenderableType]:
    """Line by line, a table for each group."""
    run = report.manifest.run
    if not report.groups.found:
        yield Text(nothing(report))
    else:
        groups = report.groups
        yield Text(f"run {run}: {report.failed:,} of {report.outcomes:,} outcomes failed", style="bold")
        chosen = "" if groups.whole else ", one of each of as many evenly spaced shards"
        yield Text(
            f"  held against {groups.baseline_rows:,} rows{chosen}; what is named has p < {ALPHA} after Bonferroni's correction"
        )
        for kind, name, group in groups.ordered():
            yield Text("")
            yield from _group(report, kind, name, group)
    if report.unreadable:
        yield Text(f"{counted(report.unreadable, 'shard')} that cannot be read left out; next: `producer audit {run}`")
    yield from _parked(report)


def nothing(report: Report) -> str:
    """That there is nothing to tell."""
    wanted = report.groups.wanted
    what = "failures" if wanted.reason is None else f"failures with reason {wanted.reason}"
    more = " and no flags" if wanted.flags else ""
    open_batches = report.manifest.batches - report.stored
    left = f"; {counted(open_batches, 'batch')} without an outcome yet" if open_batches else ""
    return f"run {report.manifest.run}: no {what}{more} among {report.outcomes:,} outcomes{left}"


def _group(report: Report, kind: Kind, name: str, group: Group) -> Iterator[RenderableType]:
    known = remedy_of(kind, name)
    head = f"{'flag ' if kind == 'flag' else ''}{printable(name, 60)}: {group.count:,} ({group.count / report.outcomes:.2%})"
    yield Text(f"{head}; {known.meaning}", style="bold")
    yield Text(f"  what to do: {known.remedy}")
    for message, count in group.messages.most_common(SHOWN_MESSAGES):
        yield Text(f"  message: {printable(message)} ({count:,} of {group.count:,})")
    found = report.groups.shared_by(group)
    if found:
        yield _shared_table(found[:SHOWN_SHARED])
        if len(found) > SHOWN_SHARED:
            yield Text(f"  and {len(found) - SHOWN_SHARED:,} more; --json lists all")
    else:
        yield Text(f"  they share nothing beyond chance ({report.groups.pairs_examined(group):,} values examined)")
    if group.examples:
        yield _example_table(group.examples)
    if report.prompts is not None:
        yield from (Text(line) for one in group.examples for line in _texts(report, one))


def _shared_table(found: list[Shared]) -> Table:
    table = _table("they share", "value", "failing", "baseline", "lift", "p")
    for one in found:
        failing = f"{one.failing:,} of {one.of_failing:,}"
        rows = f"{one.rows:,} of {one.of_rows:,}"
        lift = "none there" if one.lift is None else f"{one.lift:.1f}×"
        table.add_row(*_cells(one.trait, one.value, failing, rows, lift, f"{one.p_value:.1g}"))
    return table


def _example_table(examples: list[Example]) -> Table:
    table = _table("example", "row", "worker", "finish reason", "message")
    for one in examples:
        row = one.row
        name = f"{row.id}#{row.sample}" if row.sample else row.id
        table.add_row(*_cells(name, row.row, row.provenance.worker, row.finish_reason or "-", row.message or "-"))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 1, 0, 2))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cells(*values: object) -> Iterator[Text]:
    return (Text(printable(value, 120)) for value in values)  # Text: what looks like rich's markup is none


def _texts(report: Report, example: Example) -> Iterator[str]:
    row = example.row
    prompt = (report.prompts or {}).get((example.number, row.index))
    asked = "its shard cannot be read" if prompt is None else msgspec.json.encode(prompt_document(prompt)).decode()
    yield f"  {printable(row.id, 80)} asked: {printable(asked, _TEXT_CHARS)}"
    answer = row.rejected or row.answer
    if answer is not None and answer.content is not None:
        yield f"  {printable(row.id, 80)} answered: {printable(answer.content, _TEXT_CHARS)}"


def _parked(report: Report) -> Iterator[Text]:
    run = report.manifest.run
    if report.parked is None:
        yield Text("batches that were given up: not known, Redis did not answer")
    elif report.parked:
        given_up = counted(len(report.parked), "batch")
        yield Text(f"{given_up} given up, to be looked at by a person; next: `producer resume {run}`")
        for batch, cause in sorted(report.parked.items())[:SHOWN_PARKED]:
            yield Text(f"  {printable(batch, 20)}: {printable(cause)}")
        if len(report.parked) > SHOWN_PARKED:
            yield Text(f"  and {len(report.parked) - SHOWN_PARKED:,} more; --json lists a hundred")
