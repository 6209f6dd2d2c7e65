"""Repairs of a run: which there are, and the outcomes that count once all are laid over each other.

A repair (`producer requeue`) is a run of its own for queue, ledger and store, under `runs/<run>/repairs/`. Its prompts are
prompts of the run, in the same order, so that both can be read side by side in flat memory. Nothing stored is ever changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from producer.manifests import find_manifest
from workers.contract import layout, names
from workers.contract.schema import Completion, Manifest, Prompt
from workers.object_store import ObjectStore


def find_repairs(store: ObjectStore, manifest: Manifest) -> list[Manifest]:
    """Repairs of a run, by number; what an interrupted requeue left is none, nor what belonged to an earlier run of that name.

    Raises:
        StoreUnavailable: The store is away.
        ShardCorrupt: A manifest cannot be read.
    """
    found = []
    for prefix in store.folders(layout.repairs_prefix(manifest.run)):
        name = layout.repair_of_prefix(manifest.run, prefix)
        repair = None if name is None else find_manifest(store, name)
        if repair is not None and repair.repair is not None and repair.repair.of_made == manifest.created_at:
            found.append(repair)
    return found


def last_number(repairs: Sequence[Manifest]) -> int:
    """The highest number of a repair; 0 if there is none."""
    return max((names.parse_repair(repair.run)[1] or 0 for repair in repairs), default=0)


Key = tuple[int, int]
"""Row and sample of a prompt: its place in the order of a run and of all its repairs."""


@dataclass(frozen=True)
class Outcome:
    """A prompt, with what one run or repair made of it: None if nothing yet, or if that is `corrupt`.

    `batch` is where it lies, readable.
    """

    prompt: Prompt
    completion: Completion | None
    batch: str
    corrupt: bool = False

    @property
    def key(self) -> Key:
        """Its place in the order of all runs and repairs."""
        return self.prompt.row, self.prompt.sample


class Layer:
    """The outcomes of one repair, taken in the order of the run's prompts."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._outcomes = iter(outcomes)
        self._next = next(self._outcomes, None)
        self.strays: int = 0

    def take(self, key: Key) -> Outcome | None:
        """What the repair made of a prompt, or None if it does not hold it. Keys are asked for in order.

        What lies before it in the order belongs to no prompt that was asked for, and is counted in `strays`.
        """
        while self._next is not None and self._next.key < key:
            self.strays += 1
            self._advance()
        if self._next is None or self._next.key != key:
            return None
        found = self._next
        self._advance()
        return found

    def drain(self) -> None:
        """Count what is left: it belongs to no prompt of the run."""
        while self._next is not None:
            self.strays += 1
            self._advance()

    def _advance(self) -> None:
        self._next = next(self._outcomes, None)


def newest(base: Outcome, layers: Iterable[Layer]) -> tuple[Outcome, bool]:
    """The outcome that counts, and whether a repair that has not answered yet will replace it."""
    current, pending = base, False
    for layer in layers:
        found = layer.take(base.key)
        if found is not None:
            pending = found.completion is None
            current = current if pending else found
    return current, pending


def laid_over(base: Iterable[Outcome], layers: list[Layer]) -> Iterator[tuple[Outcome, bool]]:
    """`newest` of each prompt of a run, in order."""
    return (newest(outcome, layers) for outcome in base)
