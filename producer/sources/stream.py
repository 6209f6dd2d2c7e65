"""All sources as one stream of prompts and rejects, in order, with what is known of them at its end."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from producer.sources.ids import SeenIds
from producer.sources.lines import Line, read_lines
from producer.sources.openai_batch import ModelSeen
from producer.sources.rejects import Reject, excerpt_of
from producer.sources.rows import parse_row, shape_of
from workers.contract.schema import Prompt

ROWS_AT_A_TIME = 1000
BYTES_AT_A_TIME = 8 << 20


@dataclass
class SourceStream:
    """Reads sources once. The figures are final when the stream is exhausted (or the limit is reached).

    `ignored` counts fields of plain rows that change nothing, by name.
    """

    sources: tuple[str, ...]
    limit: int | None = None
    accepted: int = 0
    rejected: int = 0
    bytes_read: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    model: ModelSeen = field(default_factory=ModelSeen)

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    @property
    def rows(self) -> int:
        """Rows read, of either kind."""
        return self.accepted + self.rejected

    @property
    def sha256(self) -> str:
        """Over the lines that were read, each with a newline: the same for a file and its archive."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[Prompt | Reject]:
        lines = read_lines(self.sources)
        with SeenIds() as seen:
            while chunk := _some(lines):
                yield from self._unique(chunk, seen)
                if self.accepted == self.limit:
                    return

    def _unique(self, chunk: list[Line], seen: SeenIds) -> Iterator[Prompt | Reject]:
        row = self.rows
        parsed = [parse_row(line, row + place, self.model, self.ignored) for place, line in enumerate(chunk)]
        known = iter(seen.add([item.id for item in parsed if isinstance(item, Prompt)]))
        for line, item in zip(chunk, parsed, strict=True):
            outcome = item
            if isinstance(item, Prompt) and next(known):
                shown = excerpt_of(str(item.id).encode())
                outcome = Reject(line.source, line.number, "duplicate_id", shown, excerpt_of(line.body))
            self._count(line, outcome)
            yield outcome
            if self.accepted == self.limit:
                return

    def _count(self, line: Line, outcome: Prompt | Reject) -> None:
        self._digest.update(line.body)
        self._digest.update(b"\n")
        self.bytes_read += len(line.body) + 1
        if isinstance(outcome, Prompt):
            self.accepted += 1
            self.shapes[shape_of(outcome)] += 1
        else:
            self.rejected += 1
            self.reasons[outcome.reason] += 1


def _some(lines: Iterator[Line]) -> list[Line]:
    some: list[Line] = []
    held = 0
    for line in lines:
        some.append(line)
        held += len(line.body)
        if len(some) == ROWS_AT_A_TIME or held >= BYTES_AT_A_TIME:
            break
    return some
