"""`status` for people: lines, or a table that refreshes. Knows figures, not where they come from."""

from collections.abc import Mapping
from typing import cast

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from producer.printable import counted, printable
from workers.progress.figures import Document
from workers.progress.run_state import SILENT, RunState, WorkerState

_SHOWN_PARKED = 3


def duration(seconds: float | None) -> str:
    """`3 d 4 h`, `1 h 05 min`, `12 s`; `?` if it is not known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def size(count: float | None) -> str:
    """Bytes with a unit."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: object, digits: int = 0) -> str:
    """With thousands separators; `?` if it is not known."""
    return f"{value:,.{digits}f}" if isinstance(value, int | float) else "?"


def lines(state: RunState, document: Document) -> list[str]:
    """The run in a few lines, and what a person does next."""
    told = _figures(state, document)
    told += [f"  worker    {line}" for line in _worker_lines(state)]
    if state.status == "running" and not state.stands and not any(worker.up for worker in state.workers):
        told.append("  worker    none is up; beside each engine: `ENGINE_URL=http://… celery -A workers worker -n gpu0@%h`")
    if (step := _next_step(state)) is not None:
        told.append(step)
    return told


def line(state: RunState, document: Document) -> str:
    """The run in one line, for a log."""
    left = cast("dict[str, float | None]", document["eta_seconds"])
    finished = state.completed + state.failed
    troubles = [f"{worker.name} {worker.state}" for worker in state.workers if worker.state != "running" and not worker.cause]
    troubles += [f"{worker.name} {worker.state} ({worker.cause})" for worker in state.workers if worker.cause]
    parts = [
        f"{state.run}: {state.status}, {finished:,} of {number(state.total)} prompts, {state.failed:,} failed",
        f"{number(document['rate_per_sec'], 2)} prompts/s, left {duration(left['p50'])}",
        f"{counted(len(state.parked), 'batch')} parked" if state.parked else "",
        printable("; ".join(troubles)),
    ]
    return "; ".join(filter(None, parts))


def _figures(state: RunState, document: Document) -> list[str]:
    left = cast("dict[str, float | None]", document["eta_seconds"])
    told = [
        f"run {state.run}: {state.status}{', and stands' if state.stands else ''}"
        f"{f', model {printable(state.model)}' if state.model else ''}",
        f"  prompts   {number(state.total)} = {number(state.completed)} completed + {number(state.failed)} failed "
        f"+ {number(state.pending)} pending ({number(state.in_flight)} in flight); {number(state.rejected)} rows rejected",
        _rate_line(state, document),
        f"  time      {duration(_seconds(document['elapsed_hours']))} since it began, "
        f"left {duration(left['p50'])} (P90 {duration(left['p90'])})",
        f"  tokens    {number(state.prompt_tokens)} in, {number(state.completion_tokens)} out, "
        f"{number(document['avg_output_tokens'])} out per prompt",
        f"  stored    {number(state.shards)} of {number(state.batches)} shards, {size(state.shard_bytes)}",
    ]
    if state.reasons:
        told.append(f"  failures  {_tally(state.reasons)}")
    if state.flags:
        told.append(f"  flags     {_tally(state.flags)}")
    return told + _parked(state)


def _rate_line(state: RunState, document: Document) -> str:
    """A run that has ended has no present rate; of the past, Redis knows an hour, and none from before it forgot."""
    known = f"{number(document['rate_per_sec_lifetime'], 2)} prompts/s over the last hour of its work"
    if state.ended:
        return f"  rate      {known}"
    now = f"{number(document['rate_per_sec'], 2)} prompts/s now, {number(document['output_tokens_per_sec'])} output tokens/s"
    return f"  rate      {now}; {known}"


def _seconds(hours: object) -> float | None:
    return hours * 3600 if isinstance(hours, int | float) else None


def _tally(counted: Mapping[str, int]) -> str:
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{printable(name, 60)} {count:,}" for name, count in ordered)


def _parked(state: RunState) -> list[str]:
    if not state.parked:
        return []
    all_left = ", all that is left" if state.stands else ""
    batches = counted(len(state.parked), "batch")
    told = [f"  parked    {batches} waiting for a person{all_left}; then `producer resume {state.run}`"]
    for batch, cause in list(state.parked.items())[:_SHOWN_PARKED]:
        told.append(f"            {printable(batch, 20)}: {printable(cause)}")
    return told


def _worker_lines(state: RunState) -> list[str]:
    return [
        f"{printable(worker.name, 60)}: {_state_of(worker)}{'' if state.ended else _busy(worker)}; "
        f"of this run {worker.completed:,} completed, {worker.failed:,} failed"
        f"{f'; {printable(worker.cause)}' if worker.cause else ''}"
        for worker in state.workers
    ]


def _state_of(worker: WorkerState) -> str:
    told = printable(worker.state, 20)
    return f"{told}, last heard of {duration(worker.seen_s_ago)} ago" if worker.state == SILENT else told


def _busy(worker: WorkerState) -> str:
    if not worker.up or worker.in_flight is None:
        return ""
    return f", {worker.in_flight:,} of {number(worker.slots)} slots busy"


def _next_step(state: RunState) -> str | None:
    run = state.run
    if state.status == "complete":
        failures = f"`producer failures {run}`, " if state.failed else ""
        return f"next: {failures}`producer audit {run}`, `producer collect {run} -o completions.jsonl`"
    if state.status == "enqueueing" and not state.producer_at_work:
        return f"next: no producer pushes its batches; give its `producer enqueue` again, or `producer resume {run}`"
    if state.status == "running" and state.unpushed and not state.producer_at_work:
        return f"next: {counted(state.unpushed, 'batch')} never pushed, and no producer at it: `producer resume {run}`"
    if state.status in {"paused", "cancelled"}:
        return f"next: `producer resume {run}` lets it go on"
    return None


def screen(state: RunState, document: Document) -> RenderableType:
    """The run as one screen of a terminal."""
    table = Table(box=None, header_style="bold")
    for column in ("worker", "state", "slots busy", "completed", "failed", "cause"):
        table.add_column(column, justify="right" if column in {"slots busy", "completed", "failed"} else "left")
    for worker in state.workers:
        busy = f"{number(worker.in_flight)} of {number(worker.slots)}" if worker.up else ""
        figures = (busy, f"{worker.completed:,}", f"{worker.failed:,}")
        cells = (printable(worker.name, 60), _state_of(worker), *figures, printable(worker.cause, 60))
        table.add_row(*(Text(cell) for cell in cells))  # Text: what looks like rich's markup is none
    finished = state.completed + state.failed
    bar = ProgressBar(total=max(1, state.total or 1), completed=finished, width=60)
    head = [line for line in lines(state, document) if not line.startswith("  worker ")]
    return Group(Text(head[0], style="bold"), bar, *(Text(line) for line in head[1:]), Text(""), table)
