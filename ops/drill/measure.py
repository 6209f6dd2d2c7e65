"""What a round of faults cost, and whether a guarantee broke (DESIGN §3: G1 to G4). Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

BACK_WITHIN_S = 20.0


@dataclass
class Fault:
    """One fault. `may_repeat`: requests that it may cause to be made again; `back_s` None: work did not go on in time.

    `within_s` is what is promised of its kind.
    """

    kind: str
    at_s: float
    target: str = ""
    may_repeat: int = 0
    back_s: float | None = None
    within_s: float = BACK_WITHIN_S
    left_out: str = ""


@dataclass(frozen=True)
class RunProof:
    """What `audit` and `status` said of one run at the end."""

    run: str
    audit: dict[str, Any]
    status: dict[str, Any]

    @property
    def lost(self) -> int:
        """Prompts without an outcome, or with one that cannot be trusted."""
        return int(self.audit["missing"] + self.audit["corrupt"])

    @property
    def doubled(self) -> int:
        """Rows beyond the first, and prompts that were counted otherwise than they are stored."""
        told = {name: self.status[name] or 0 for name in ("completed", "failed", "pending")}
        off = abs(told["completed"] - self.audit["ok"]) + abs(told["failed"] - self.audit["failed"]) + told["pending"]
        return int(self.audit["doubled"] + self.audit["orphan"] + off)


@dataclass
class Round:
    """One round: its faults in order, its runs' proofs, and how often each prompt was begun at an engine."""

    seed: int
    faults: list[Fault] = field(default_factory=list)
    proofs: list[RunProof] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    wall_s: float = 0.0
    unfinished: str = ""

    @property
    def lost(self) -> int:
        """See `RunProof`."""
        return sum(proof.lost for proof in self.proofs)

    @property
    def doubled(self) -> int:
        """See `RunProof`."""
        return sum(proof.doubled for proof in self.proofs)

    @property
    def failed(self) -> int:
        """Prompts that ended as a failure with a reason: no guarantee breaks, yet no fault here should cause one."""
        return sum(int(proof.audit["failed"]) for proof in self.proofs)

    @property
    def regenerated(self) -> int:
        """Requests beyond the first of each prompt."""
        return sum(count - 1 for count in self.begun.values())

    @property
    def may_regenerate(self) -> int:
        """The bound on it."""
        return sum(fault.may_repeat for fault in self.faults)

    def broken(self) -> list[str]:
        """Guarantees that broke, a sentence each."""
        told = [self.unfinished] if self.unfinished else []
        if self.lost:
            told.append(f"G1: {self.lost} prompts lost")
        if self.doubled:
            told.append(f"G2: {self.doubled} rows doubled or miscounted")
        if self.regenerated > self.may_regenerate:
            told.append(f"G3: {self.regenerated} prompts generated again, at most {self.may_regenerate} were in flight")
        for fault in self.faults:
            if not fault.left_out and (fault.back_s is None or fault.back_s > fault.within_s):
                back = "not back" if fault.back_s is None else f"back after {fault.back_s:.1f} s"
                told.append(f"G4: {fault.kind} {fault.target}: {back}, wanted within {fault.within_s:g} s")
        return told

    def as_document(self) -> dict[str, object]:
        """For scripts."""
        return {
            "seed": self.seed,
            "prompts": self.prompts,
            "lost": self.lost,
            "doubled": self.doubled,
            "failed": self.failed,
            "regenerated": self.regenerated,
            "may_regenerate": self.may_regenerate,
            "wall_s": round(self.wall_s, 1),
            "broken": self.broken(),
            "faults": [
                {
                    "kind": fault.kind,
                    "target": fault.target,
                    "at_s": round(fault.at_s, 1),
                    "may_repeat": fault.may_repeat,
                    "within_s": fault.within_s,
                    "back_s": None if fault.back_s is None else round(fault.back_s, 1),
                    "left_out": fault.left_out or None,
                }
                for fault in self.faults
            ],
        }


def summary(rounds: Iterable[Round]) -> dict[str, object]:
    """All rounds together: worst and median seconds until back by kind of fault."""
    rounds = list(rounds)
    by_kind: dict[str, list[float]] = {}
    for fault in (fault for one in rounds for fault in one.faults):
        if fault.back_s is not None and not fault.left_out:
            by_kind.setdefault(fault.kind, []).append(fault.back_s)
    return {
        "rounds": len(rounds),
        "prompts": sum(one.prompts for one in rounds),
        "lost": sum(one.lost for one in rounds),
        "doubled": sum(one.doubled for one in rounds),
        "failed": sum(one.failed for one in rounds),
        "regenerated": sum(one.regenerated for one in rounds),
        "may_regenerate": sum(one.may_regenerate for one in rounds),
        "broken_rounds": [one.seed for one in rounds if one.broken()],
        "back_s": {
            kind: {"count": len(times), "median": round(sorted(times)[len(times) // 2], 1), "worst": round(max(times), 1)}
            for kind, times in sorted(by_kind.items())
        },
    }
