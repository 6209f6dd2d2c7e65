"""Which faults a round has, in which order, at which moments: a function of the seed. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = (
    "worker-killed",
    "worker-paused",
    "worker-stopped",
    "engine-killed",
    "engine-hung",
    "redis-killed",
    "redis-emptied",
    "connections-cut",
    "network-cut",
    "network-stalled",
    "store-cut",
    "store-stalled",
    "producer-killed",
)
PAUSE_S = (0.5, 2.0)
OUTAGE_S = (4.0, 10.0)
KILL_AFTER_S = (0.7, 2.0)
"""A producer of some hundred small shards reads, uploads or pushes then."""


@dataclass(frozen=True)
class Strike:
    """One fault to come. `aim` chooses among the parts that it could meet, in 0 ≤ aim < 1.

    `pause_s` passes before it, once work goes on after the one before; an outage lasts `lasts_s`; a producer dies after
    `kill_after_s`.
    """

    kind: str
    aim: float
    pause_s: float
    lasts_s: float
    kill_after_s: float

    def target(self, names: Sequence[str]) -> str:
        """The part that it meets."""
        return sorted(names)[int(self.aim * len(names))]


def plan(seed: int, kinds: Sequence[str], count: int) -> list[Strike]:
    """The faults of a round: the same for the same arguments, each kind at most once."""
    rng = random.Random(seed)  # noqa: S311
    return [
        Strike(kind, rng.random(), rng.uniform(*PAUSE_S), rng.uniform(*OUTAGE_S), rng.uniform(*KILL_AFTER_S))
        for kind in rng.sample(list(kinds), min(count, len(kinds)))
    ]
