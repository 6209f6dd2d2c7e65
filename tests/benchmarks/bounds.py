"""The least time in which a simulated engine can answer: the greedy bound, from the same lengths and the same speed curve."""

from ops.simulator.batching import ContinuousBatch
from ops.simulator.lengths import LengthModel, digest_of


def greedy_seconds(prompts: list[str], lengths: LengthModel, max_running: int, tokens_per_s: float) -> float:
    """All prompts wait at the engine from the start, so no slot is ever free while one is left."""
    batch = ContinuousBatch(max_running, tokens_per_s)
    for number, text in enumerate(prompts):
        batch.submit(0.0, str(number), lengths.tokens(digest_of(text.encode())))
    now = 0.0
    while (step := batch.next_end_s()) is not None:
        now += step + 1e-9
        batch.advance(now)
    return now
