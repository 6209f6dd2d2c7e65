"""Rows sorted into groups by reason (and flag), with counts, examples and what the rows of a group share. Pure.

Memory does not grow with the run: a group keeps tallies and a few examples.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from producer.failures.sharing import Cases, Shared, Tally, chosen_rows, pairs_examined, shared
from producer.failures.traits import normalised, traits_of
from workers.contract.schema import Completion

Kind = Literal["reason", "flag"]
MESSAGES_KEPT = 1000
"""Distinct messages of a group; what comes later counts as `OTHER`."""
OTHER = "(others)"
NO_MESSAGE = "(no message)"


@dataclass(frozen=True)
class Wanted:
    """What is grouped: failed rows of one reason (None: all), and flagged rows if asked for."""

    reason: str | None = None
    flags: bool = False
    examples: int = 3

    def groups_of(self, row: Completion) -> list[tuple[Kind, str]]:
        """The groups of one row: its reason, or its flags."""
        if row.status == "failed":
            reason = row.reason or "?"
            return [("reason", reason)] if self.reason in {None, reason} else []
        return [("flag", flag) for flag in row.flags] if self.flags else []

    def some_in(self, reasons: dict[str, int], flags: dict[str, int], failed: int) -> bool:
        """Whether a shard with these counts holds a row of a group."""
        if self.flags and any(flags.values()):
            return True
        return failed > 0 if self.reason is None else reasons.get(self.reason, 0) > 0


@dataclass(frozen=True)
class Example:
    """One row of a group, and the batch where its prompt is found."""

    number: int
    row: Completion


@dataclass
class Group:
    """Rows of one reason or flag."""

    count: int = 0
    cases: Cases = field(default_factory=Cases)
    messages: Counter[str] = field(default_factory=Counter)
    examples: list[Example] = field(default_factory=list)

    def add(self, number: int, row: Completion, limit: int, *, in_baseline: bool) -> None:
        """Count one row of batch `number`."""
        self.count += 1
        self.cases.add(traits_of(row), in_baseline=in_baseline)
        message = NO_MESSAGE if row.message is None else normalised(row.message)
        known = message in self.messages or len(self.messages) < MESSAGES_KEPT
        self.messages[message if known else OTHER] += 1
        if len(self.examples) < limit:
            self.examples.append(Example(number, row))


@dataclass
class Groups:
    """All groups of a run, and the baseline that they are held against; `whole`: every shard belongs to it."""

    wanted: Wanted
    whole: bool = True
    baseline: Tally = field(default_factory=Tally)
    baseline_rows: int = 0
    found: dict[tuple[Kind, str], Group] = field(default_factory=dict)

    def add(self, number: int, rows: list[Completion], *, in_baseline: bool) -> list[Completion]:
        """Take the rows of one shard; returns those that failed and are wanted."""
        failed = []
        chosen = chosen_rows(number, len(rows), whole=self.whole) if in_baseline else range(0)
        for position, row in enumerate(rows):
            if position in chosen:
                self.baseline.add(traits_of(row))
                self.baseline_rows += 1
            names = self.wanted.groups_of(row)
            for name in names:
                self.found.setdefault(name, Group()).add(number, row, self.wanted.examples, in_baseline=position in chosen)
            if names and row.status == "failed":
                failed.append(row)
        return failed

    def ordered(self) -> list[tuple[Kind, str, Group]]:
        """Reasons, then flags; the largest first."""
        ordered = sorted(self.found.items(), key=lambda item: (item[0][0] != "reason", -item[1].count, item[0]))
        return [(kind, name, group) for (kind, name), group in ordered]

    def shared_by(self, group: Group) -> list[Shared]:
        """What the rows of a group share."""
        return shared(group.cases, self.baseline)

    def pairs_examined(self, group: Group) -> int:
        """How many values were held against the baseline."""
        return pairs_examined(group.cases, self.baseline)
