"""What an audit finds in one batch, and how findings add up. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from producer.shards import BatchRead, prompt_name
from workers.contract.errors import ShardCorrupt
from workers.contract.schema import REASONS, Completion, Prompt, ShardCounts

Kind = Literal["missing", "doubled", "orphan", "corrupt"]
KINDS: tuple[Kind, ...] = ("missing", "doubled", "orphan", "corrupt")
EXAMPLES = 100


@dataclass
class Findings:
    """Counts of prompts and rows, examples of what is wrong (ids, at most a hundred of a kind), and sentences about objects."""

    ok: int = 0
    failed: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    examples: dict[Kind, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    problems: list[str] = field(default_factory=list)
    problems_left_out: int = 0

    @property
    def clean(self) -> bool:
        """Every prompt has exactly one outcome, and nothing else is there."""
        return not any(self.counts.values()) and not self.problems

    def found(self, kind: Kind, name: str, amount: int = 1) -> None:
        """Count one thing that is wrong; `amount` rows have this one example."""
        self.counts[kind] += amount
        if len(self.examples[kind]) < EXAMPLES:
            self.examples[kind].append(name)

    def told(self, problem: ShardCorrupt | str) -> None:
        """Keep a sentence about an object, up to the limit."""
        if len(self.problems) < EXAMPLES:
            self.problems.append(str(problem))
        else:
            self.problems_left_out += 1

    def add(self, other: "Findings") -> None:
        """Take over what was found elsewhere."""
        self.ok += other.ok
        self.failed += other.failed
        for kind in KINDS:
            self.counts[kind] += other.counts[kind]
            self.examples[kind] += other.examples[kind][: EXAMPLES - len(self.examples[kind])]
        for problem in other.problems:
            self.told(problem)
        self.problems_left_out += other.problems_left_out


def examine(read: BatchRead, samples: int) -> Findings:
    """Hold the outcomes of a batch against its prompts.

    Each prompt is counted once, as ok, failed, missing or corrupt; rows beyond the first of a prompt are `doubled`, rows that
    belong to no prompt are `orphan`. Without a trustworthy input shard all prompts of the batch are corrupt.
    """
    findings = Findings()
    for error in (read.input_error, read.output_error, read.told_error):
        if error is not None:
            findings.told(error)
    if read.prompts is None:
        for index in range(read.expected):
            findings.found("corrupt", f"{read.label}/{index}")
    elif read.output_error is not None:
        for prompt in read.prompts:
            findings.found("corrupt", prompt_name(prompt, samples))
    else:
        _match(read.prompts, read.completions or [], samples, findings)
    if read.completions is not None and read.told is not None:
        _compare_counts(read, ShardCounts.of(read.completions), read.told, findings)
    return findings


def _match(prompts: list[Prompt], completions: list[Completion], samples: int, findings: Findings) -> None:
    rows: dict[int, list[Completion]] = {}
    for completion in completions:
        if belongs(completion, prompts):
            rows.setdefault(completion.index, []).append(completion)
        else:
            findings.found("orphan", prompt_name(completion, samples))
    for index, prompt in enumerate(prompts):
        name = prompt_name(prompt, samples)
        found = rows.get(index, [])
        if not found:
            findings.found("missing", name)
        elif not sound(found[0]):
            findings.found("corrupt", name)
        elif found[0].status == "ok":
            findings.ok += 1
        else:
            findings.failed += 1
        if len(found) > 1:
            findings.found("doubled", name, len(found) - 1)


def belongs(completion: Completion, prompts: list[Prompt]) -> bool:
    """Whether a row is the outcome of the prompt at its index: same id, row and sample."""
    if not 0 <= completion.index < len(prompts):
        return False
    prompt = prompts[completion.index]
    # The type too: an id 1 is not the id "1".
    return (type(prompt.id), prompt.id, prompt.row, prompt.sample) == (
        type(completion.id),
        completion.id,
        completion.row,
        completion.sample,
    )


def sound(completion: Completion) -> bool:
    """A good row has an answer and no reason; a failed one has a reason of the closed list and no answer."""
    if completion.status == "ok":
        return completion.answer is not None and completion.reason is None
    return completion.reason in REASONS and completion.answer is None


def _compare_counts(read: BatchRead, counted: ShardCounts, told: ShardCounts, findings: Findings) -> None:
    for name in ShardCounts.__struct_fields__:
        found, expected = getattr(told, name), getattr(counted, name)
        if found != expected:
            findings.told(f"completions of batch {read.label}: its metadata says {name} {found}, its rows make {expected}")
            findings.found("corrupt", f"{read.label}: {name} in its metadata")
            return
