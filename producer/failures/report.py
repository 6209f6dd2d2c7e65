"""What is told of a run's failures, as one value, and its JSON document. Pure."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from producer.failures.groups import Example, Group, Groups, Kind
from producer.failures.remedies import remedy_of
from producer.failures.sharing import ALPHA
from workers.contract import layout
from workers.contract.schema import Completion, Manifest, Prompt, ShardCounts

SHOWN_MESSAGES = 5
LISTED = 100
"""Parked batches and unreadable shards that the document names; the counts are of all."""
_PROMPT_FIELDS = ("messages", "text", "input_ids")


@dataclass
class Report:
    """Everything. `parked` is None if Redis did not answer; `prompts` holds those of the examples, if they were asked for."""

    manifest: Manifest
    groups: Groups
    stored: int
    parked: dict[str, str] | None = None
    outcomes: int = 0
    failed: int = 0
    read: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)
    prompts: dict[tuple[int, int], Prompt] | None = None

    def count(self, counts: ShardCounts) -> None:
        """Add the totals of one shard."""
        self.outcomes += counts.completed + counts.failed
        self.failed += counts.failed

    def told(self, problem: object) -> None:
        """Count an object that cannot be read, and keep its sentence, up to the limit."""
        self.unreadable += 1
        if len(self.problems) < LISTED:
            self.problems.append(str(problem))

    def as_document(self) -> dict[str, object]:
        """For scripts; keys are stable."""
        return {
            "run": self.manifest.run,
            "outcomes": self.outcomes,
            "failed": self.failed,
            "shards": {
                "batches": self.manifest.batches,
                "stored": self.stored,
                "read": self.read,
                "unreadable": self.unreadable,
            },
            "baseline_rows": self.groups.baseline_rows,
            "alpha": ALPHA,
            "groups": [self._group(*one) for one in self.groups.ordered()],
            "parked": self._parked(),
            "problems": self.problems,
        }

    def _group(self, kind: Kind, name: str, group: Group) -> dict[str, object]:
        known = remedy_of(kind, name)
        return {
            "kind": kind,
            "name": name,
            "count": group.count,
            "share": group.count / self.outcomes,
            "meaning": known.meaning,
            "remedy": known.remedy,
            "messages": dict(group.messages.most_common(SHOWN_MESSAGES)),
            "pairs_examined": self.groups.pairs_examined(group),
            "shared": self.groups.shared_by(group),
            "examples": [self._example(one) for one in group.examples],
        }

    def _example(self, example: Example) -> dict[str, object]:
        row = example.row
        told: dict[str, object] = {
            **row_document(row),
            "message": row.message,
            "worker": row.provenance.worker,
            "finish_reason": row.finish_reason,
            "batch": layout.batch_label(example.number),
        }
        if self.prompts is not None:
            prompt = self.prompts.get((example.number, row.index))
            told["prompt"] = None if prompt is None else prompt_document(prompt)
            answer = row.rejected or row.answer
            told["text"] = None if answer is None else answer.content
        return told

    def _parked(self) -> dict[str, object] | None:
        if self.parked is None:
            return None
        listed = sorted(self.parked.items())[:LISTED]
        return {
            "count": len(self.parked),
            "batches": [{"batch": batch, "cause": cause} for batch, cause in listed],
            "next": f"producer resume {self.manifest.run}",
        }


def row_document(row: Completion) -> dict[str, object]:
    """A failing row in the file of `--ids`, and the first keys of an example."""
    return {"id": row.id, "row": row.row, "sample": row.sample, "reason": row.reason}


def prompt_document(prompt: Prompt) -> dict[str, Any]:
    """The text of a prompt, as it was given."""
    given = {name: value for name in _PROMPT_FIELDS if (value := getattr(prompt, name)) is not None}
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    return decoded
