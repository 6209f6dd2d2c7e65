"""What an audit finds in one batch, and how findings add up. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from producer.repairs import Layer, Outcome
from producer.shards import BatchRead, prompt_name
from workers.contract.errors import ShardCorrupt
from workers.contract.schema import REASONS, Completion, Prompt, ShardCounts

Kind = Literal["missing", "doubled", "orphan", "corrupt"]
Verdict = Literal["ok", "failed", "missing", "corrupt"]
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


def examine(read: BatchRead, samples: int, layers: Sequence[Layer] = ()) -> Findings:
    """Hold the outcomes of a batch against its prompts.

    Each prompt is counted once, as ok, failed, missing or corrupt, by the newest of its outcomes: that of the last repair in
    `layers` which holds it. Rows beyond the first of a prompt are `doubled`, rows that belong to no prompt are `orphan`.
    Without a trustworthy input shard all prompts of the batch are corrupt.
    """
    findings = Findings()
    for error in (read.input_error, read.output_error, read.told_error):
        if error is not None:
            findings.told(error)
    if read.prompts is None:
        for index in range(read.expected):
            findings.found("corrupt", f"{read.label}/{index}")
    else:
        rows = _rows(read, samples, findings)
        for index, prompt in enumerate(read.prompts):
            verdict = "corrupt" if read.output_error is not None else _verdict(rows.get(index, []))
            _count(findings, _newest(verdict, prompt, layers), prompt_name(prompt, samples))
    if read.completions is not None and read.told is not None:
        _compare_counts(read, ShardCounts.of(read.completions), read.told, findings)
    return findings


def examine_repair(reads: Iterable[BatchRead], samples: int, findings: Findings) -> Iterator[Outcome]:
    """The outcomes of a repair, for `Layer`; what is wrong with its shards goes to `findings`.

    Its prompts are counted where they are laid over the run, except those of a batch whose prompts are not known.
    """
    for read in reads:
        own = examine(read, samples)
        own.ok = own.failed = 0
        counted: list[Kind] = ["missing", "corrupt"]
        for kind in counted if read.prompts is not None else ():
            own.counts[kind], own.examples[kind] = 0, []
        findings.add(own)
        rows = {index: found[0] for index, found in _rows(read, samples, Findings()).items()}
        for index, prompt in enumerate(read.prompts or []):
            yield Outcome(prompt, rows.get(index), read.label, corrupt=read.output_error is not None)


def _rows(read: BatchRead, samples: int, findings: Findings) -> dict[int, list[Completion]]:
    """Rows by the index of their prompt; those that belong to none, or come again, are findings."""
    rows: dict[int, list[Completion]] = {}
    prompts = read.prompts or []
    for completion in read.completions or []:
        if belongs(completion, prompts):
            rows.setdefault(completion.index, []).append(completion)
        else:
            findings.found("orphan", prompt_name(completion, samples))
    for index, found in rows.items():
        if len(found) > 1:
            findings.found("doubled", prompt_name(prompts[index], samples), len(found) - 1)
    return rows


def _verdict(found: list[Completion]) -> Verdict:
    if not found:
        return "missing"
    return found[0].status if sound(found[0]) else "corrupt"


def _newest(verdict: Verdict, prompt: Prompt, layers: Sequence[Layer]) -> Verdict:
    for layer in layers:
        found = layer.take((prompt.row, prompt.sample))
        if found is not None:
            verdict = "corrupt" if found.corrupt else _verdict([found.completion] if found.completion else [])
    return verdict


def _count(findings: Findings, verdict: Verdict, name: str) -> None:
    if verdict == "ok":
        findings.ok += 1
    elif verdict == "failed":
        findings.failed += 1
    else:
        findings.found(verdict, name)


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
