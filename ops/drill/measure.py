"""What a round of faults cost, and whether a guarantee broke (DESIGN §3: G1 to G4). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request at an engine. Times are UNIX seconds; `end` is None while it runs."""

    engine: str
    digest: str
    start: float
    end: float | None = None


@dataclass
class Fault:
    """One fault that struck, or was `left_out` with a reason.

    `may_repeat` is how many requests it may cause to be made again, and `touched` are the digests of prompts that it met: their
    repeats are its own. `back_s`: until work went on, after an outage from its end; None: not in time. `freed_s`: until a
    silent worker held none of its batches any more. `within_s` is what is promised of both. `all_back_s`: until others had
    taken up the last of these batches, which no one promises: it depends on how soon they have room.
    """

    kind: str
    at: float
    within_s: float
    target: str = ""
    run: str = ""
    may_repeat: int = 0
    touched: frozenset[str] = frozenset()
    regenerated: int = 0
    back_s: float | None = None
    freed_s: float | None = None
    all_back_s: float | None = None
    outage_s: float = 0.0
    left_out: str = ""

    def broken(self) -> list[str]:
        """Guarantees that it broke, a sentence each."""
        if self.left_out:
            return []
        name, told = f"{self.kind} {self.target}".strip(), []
        if self.regenerated > self.may_repeat:
            told.append(f"G3: {name}: {self.regenerated} prompts generated again, at most {self.may_repeat} may be")
        slowest = None if self.back_s is None else max(self.back_s, self.freed_s or 0.0)
        if slowest is None or slowest > self.within_s:
            back = "not back" if slowest is None else f"back after {slowest:.1f} s"
            told.append(f"G4: {name}: {back}, wanted within {self.within_s:g} s")
        return told


@dataclass(frozen=True)
class RunProof:
    """What `audit` and `status` said of one run at the end, and how many prompts `enqueue` accepted."""

    run: str
    accepted: int
    audit: dict[str, Any]
    status: dict[str, Any]

    @property
    def lost(self) -> int:
        """Prompts without an outcome, or with one that cannot be trusted."""
        return int(self.audit["missing"] + self.audit["corrupt"] + max(0, self.accepted - self.audit["rows"]))

    @property
    def doubled(self) -> int:
        """Rows beyond the first, and prompts that were counted otherwise than they are stored."""
        stored = {"completed": self.audit["ok"], "failed": self.audit["failed"], "pending": self.audit["missing"]}
        differences = [(self.status[name] or 0) - count for name, count in stored.items()]
        off = max(sum(max(one, 0) for one in differences), sum(max(-one, 0) for one in differences))
        more = max(0, self.audit["rows"] - self.accepted)
        return int(self.audit["doubled"] + self.audit["orphan"] + more + off)


def attribute(faults: Iterable[Fault], asked: Iterable[Asked]) -> int:
    """Count each request beyond the first of its prompt for the fault that caused it.

    That is the last fault before it that met its prompt; else the last before it.

    Returns:
        Requests made again before any fault: nothing explains them.
    """
    struck = sorted((fault for fault in faults if not fault.left_out), key=lambda fault: fault.at)
    seen: set[str] = set()
    unexplained = 0
    for request in sorted(asked, key=lambda one: one.start):
        if request.digest not in seen:
            seen.add(request.digest)
            continue
        before = [fault for fault in struck if fault.at <= request.start]
        if not before:
            unexplained += 1
            continue
        cause = next((fault for fault in reversed(before) if request.digest in fault.touched), before[-1])
        cause.regenerated += 1
    return unexplained


@dataclass
class Round:
    """One round: its faults in order, and its runs' proofs. `unfinished` says why it did not end, `evidence` what was seen."""

    seed: int
    faults: list[Fault] = field(default_factory=list)
    proofs: list[RunProof] = field(default_factory=list)
    unexplained: int = 0
    begun_at: float = 0.0
    wall_s: float = 0.0
    unfinished: str = ""
    evidence: list[str] = field(default_factory=list)

    @property
    def prompts(self) -> int:
        """That were accepted."""
        return sum(proof.accepted for proof in self.proofs)

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
        return self.unexplained + sum(fault.regenerated for fault in self.faults)

    @property
    def may_regenerate(self) -> int:
        """The bound on it."""
        return sum(fault.may_repeat for fault in self.faults)

    def broken(self) -> list[str]:
        """Guarantees that broke, a sentence each."""
        told = [f"not finished: {self.unfinished}"] if self.unfinished else []
        if self.lost:
            told.append(f"G1: {self.lost} prompts lost")
        if self.doubled:
            told.append(f"G2: {self.doubled} rows doubled or miscounted")
        if self.unexplained:
            told.append(f"G3: {self.unexplained} prompts generated again before any fault")
        return told + [sentence for fault in self.faults for sentence in fault.broken()]
