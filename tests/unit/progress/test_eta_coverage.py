"""The time left, held against 200 simulated runs: how far off it is, and whether P90 holds as often as it says."""

import bisect
import heapq
import random
from functools import cache

import pytest

from workers.progress.rates import Sample, eta

RUNS = 200
PROMPTS = 4000
SLOTS = 64
STEP_S = 2.0
TAIL = 0.97
"""Up to this share of a run the slots are full; the last answers are not foreseen, and `eta` says so."""


@cache
def ends_of(seed: int) -> list[float]:
    """When each prompt of a run ended: slots that take one after the other, with heavy-tailed lengths."""
    rng, free, ends = random.Random(seed), [0.0] * SLOTS, []
    for _ in range(PROMPTS):
        ends.append(heapq.heappop(free) + min(60.0, rng.lognormvariate(0.7, 1.0)))
        heapq.heappush(free, ends[-1])
    return sorted(ends)


def sampled(ends: list[float], begin_s: float, until_s: float) -> list[Sample]:
    """Totals as workers note them: at most every two seconds, from a moment on."""
    moments = (begin_s + STEP_S * step for step in range(int((until_s - begin_s) / STEP_S) + 1))
    return [Sample(at_s, rows := bisect.bisect_right(ends, at_s), rows * 100) for at_s in moments]


def said_and_came(share: float, last_s: float = float("inf")) -> list[tuple[float, float | None, float]]:
    """P50, P90 and the truth of each run, asked when a share is finished, from the samples of the last seconds."""
    found = []
    for seed in range(RUNS):
        ends = ends_of(seed)
        now_s, target = ends[int(share * PROMPTS)], int(TAIL * PROMPTS)
        samples = sampled(ends, max(0.0, now_s - last_s), now_s)
        told = eta(samples, now_s, target - samples[-1].rows)
        assert told is not None
        found.append((told.p50, told.p90, ends[target] - now_s))
    return found


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_most_predictions_are_within_a_tenth_and_p90_holds_as_often_as_it_says(share: float) -> None:
    found = said_and_came(share)
    errors = sorted(abs(p50 - came) / came for p50, _, came in found)
    assert errors[RUNS // 2] < 0.05
    assert errors[int(RUNS * 0.9)] < 0.12
    bands = [(p90, came) for _, p90, came in found if p90 is not None]
    assert len(bands) == RUNS
    held = sum(came <= p90 for p90, came in bands) / RUNS
    assert 0.84 <= held <= 0.98, f"P90 held in {held:.0%}"


def test_after_a_restart_at_half_the_time_left_is_as_right() -> None:
    errors = sorted(abs(p50 - came) / came for p50, _, came in said_and_came(0.5, last_s=60.0))
    assert errors[RUNS // 2] < 0.05
