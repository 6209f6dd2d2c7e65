"""A run under faults, as a bystander sees it in Redis: who holds what, whether it goes on, whether it is over."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.drill.rehearsal import Rehearsal
from ops.quickstart.processes import wait_until
from workers.contract.names import RunKeys


@dataclass(frozen=True)
class Target:
    """The run that is struck: its prompts' digests in order, the size of its batches, and a source for a run beside it."""

    run: str
    digests: Sequence[str]
    batch_size: int
    spare: Path

    def digests_of(self, batch: str) -> Sequence[str]:
        """Of the prompts of a batch."""
        start = int(batch) * self.batch_size
        return self.digests[start : start + self.batch_size]


class Watch:
    """Watches one run. Waits give up after `give_up_s` with a TimeoutError."""

    def __init__(self, fleet: Rehearsal, run: str, give_up_s: float) -> None:
        self._fleet = fleet
        self._run = run
        self._keys = RunKeys(run)
        self._give_up_s = give_up_s

    def at_work(self, name: str) -> bool:
        """Whether a worker lives and holds batches."""
        return bool(self._fleet.held_by(name, self._run)) and self._fleet.workers[name].alive()

    def over(self) -> bool:
        """Whether the run is complete."""
        return self._fleet.status_of(self._run) == "complete"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, or for the end of the run."""
        wait_until(lambda: self.over() or condition(), self._give_up_s, what)

    def goes_on(self) -> float:
        """Seconds until the next outcome, or the end of the run."""
        begun, before = time.monotonic(), self._fleet.counted(self._run)
        self.until(lambda: self._fleet.counted(self._run) > before, "an outcome after the fault")
        return time.monotonic() - begun

    def tokens_of(self, name: str) -> dict[str, bytes]:
        """Batches that a worker holds, each with the token of its claim."""
        owners: dict[bytes, bytes] = self._fleet.client.hgetall(self._keys.owner)  # type: ignore[assignment]
        return {batch.decode(): owner for batch, owner in owners.items() if owner.startswith(f"{name}@".encode())}

    def freed(self, tokens: dict[str, bytes]) -> bool:
        """Whether none of these batches is held under its token."""
        owners = self._fleet.client.hmget(self._keys.owner, list(tokens)) if tokens else []
        return all(owner != token for owner, token in zip(owners, tokens.values(), strict=True))

    def taken_up(self, tokens: dict[str, bytes]) -> bool:
        """Whether each of these batches is done, or held under another token."""
        done = all(
            self._fleet.client.getbit(self._keys.done, int(batch)) or self._fleet.client.hexists(self._keys.owner, batch)
            for batch in tokens
        )
        return done and self.freed(tokens)
