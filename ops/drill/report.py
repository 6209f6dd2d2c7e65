"""What a drill says: a line as each fault and each round ends, a table, a document for scripts. Pure, but for the table."""

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from ops.drill.measure import Fault, Round

PLAIN_WIDTH = 120
"""Of a table that goes into a file."""


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def fault_line(fault: Fault) -> str:
    """One fault for people, without what only the end of its round tells."""
    name = f"{fault.kind} {fault.target}".strip()
    if fault.left_out:
        return f"{name}: left out, {fault.left_out}"
    outage = f" after {fault.outage_s:.1f} s" if fault.outage_s else ""
    return f"{name}{outage}: " + ("not back in time" if fault.back_s is None else f"back in {fault.back_s:.1f} s")


def round_line(result: Round) -> str:
    """One round for people."""
    struck = sum(not fault.left_out for fault in result.faults)
    figures = (
        f"lost {result.lost}, doubled {result.doubled}, failed {result.failed}, "
        f"regenerated {result.regenerated} of {result.may_regenerate} allowed"
    )
    figures = "nothing proven" if result.unfinished else figures
    verdict = "; ".join(result.broken()) or "whole"
    return f"seed {result.seed}: {result.prompts} prompts, {struck} faults, {result.wall_s:.0f} s: {figures}; {verdict}"


def fault_document(fault: Fault, begun_at: float) -> dict[str, object]:
    """One fault for scripts. `at_s` counts from the start of its round."""
    return {
        "kind": fault.kind,
        "target": fault.target,
        "at_s": _seconds(fault.at - begun_at),
        "outage_s": _seconds(fault.outage_s),
        "regenerated": fault.regenerated,
        "may_repeat": fault.may_repeat,
        "within_s": fault.within_s,
        "back_s": _seconds(fault.back_s),
        "freed_s": _seconds(fault.freed_s),
        "all_back_s": _seconds(fault.all_back_s),
        "left_out": fault.left_out or None,
        "broken": fault.broken(),
    }


def round_document(result: Round) -> dict[str, object]:
    """One round for scripts."""
    return {
        "seed": result.seed,
        "runs": [proof.run for proof in result.proofs],
        "prompts": result.prompts,
        "lost": result.lost,
        "doubled": result.doubled,
        "failed": result.failed,
        "regenerated": result.regenerated,
        "may_regenerate": result.may_regenerate,
        "wall_s": _seconds(result.wall_s),
        "unfinished": result.unfinished or None,
        "broken": result.broken(),
        "faults": [fault_document(fault, result.begun_at) for fault in result.faults],
    }


def by_kind(rounds: Sequence[Round]) -> dict[str, dict[str, float | int | None]]:
    """Each kind of fault over all rounds. Losses and doubles show at a round's end: they count for each kind in that round."""
    found: dict[str, list[tuple[Fault, Round]]] = {}
    for one in rounds:
        for fault in one.faults:
            found.setdefault(fault.kind, []).append((fault, one))
    told: dict[str, dict[str, float | int | None]] = {}
    for kind, pairs in sorted(found.items()):
        struck = [(fault, one) for fault, one in pairs if not fault.left_out]
        times = [fault.back_s for fault, _ in struck if fault.back_s is not None]
        told[kind] = {
            "struck": len(struck),
            "left_out": len(pairs) - len(struck),
            "lost": sum(one.lost for _, one in struck),
            "doubled": sum(one.doubled for _, one in struck),
            "regenerated": sum(fault.regenerated for fault, _ in struck),
            "may_repeat": sum(fault.may_repeat for fault, _ in struck),
            "not_back": len(struck) - len(times),
            "median_back_s": _seconds(median(times)) if times else None,
            "worst_back_s": _seconds(max(times, default=None)),
            "worst_all_back_s": _seconds(max((fault.all_back_s for fault, _ in struck if fault.all_back_s), default=None)),
        }
    return told


def summary(rounds: Sequence[Round], wanted: int) -> dict[str, object]:
    """All rounds together; `wanted` is how many there should have been."""
    return {
        "rounds": len(rounds),
        "rounds_wanted": wanted,
        "prompts": sum(one.prompts for one in rounds),
        "lost": sum(one.lost for one in rounds),
        "doubled": sum(one.doubled for one in rounds),
        "failed": sum(one.failed for one in rounds),
        "regenerated": sum(one.regenerated for one in rounds),
        "may_regenerate": sum(one.may_regenerate for one in rounds),
        "broken_rounds": [one.seed for one in rounds if one.broken()],
        "faults": by_kind(rounds),
    }


def print_table(rounds: Sequence[Round], wanted: int) -> None:
    """For people, on stdout."""
    console, told = Console(soft_wrap=True), summary(rounds, wanted)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=PLAIN_WIDTH)
    table = Table("fault", "struck", "left out", "lost", "doubled", "regenerated", "allowed", "median s back", "worst s")
    for kind, of in by_kind(rounds).items():
        columns = ("struck", "left_out", "lost", "doubled", "regenerated", "may_repeat", "median_back_s", "worst_back_s")
        table.add_row(kind, *("–" if of[name] is None else str(of[name]) for name in columns))
    console.print(table)
    console.print(
        f"{told['rounds']} of {wanted} rounds, {told['prompts']} prompts: lost {told['lost']}, doubled {told['doubled']}, "
        f"failed {told['failed']}, regenerated {told['regenerated']} (allowed {told['may_regenerate']}), "
        f"broken rounds: {told['broken_rounds'] or 'none'}"
    )
