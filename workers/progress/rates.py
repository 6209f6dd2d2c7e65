"""Rate and time left, from samples of a run's totals. Pure: the clock is passed in.

Workers take a sample of the totals at most every two seconds, and only when an answer is counted. So a long step between two
samples is a time without work (a pause, a Redis that was away, an earlier life of the run), called a *gap*; what the totals
grew by over a gap counts neither as rows nor as time. The rows before the first sample are its base and count nowhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, variance

WINDOW_S = 60.0
SHORTEST_GAP_S = 30.0
GAP_STEPS = 20
"""A step this many times the usual one is a gap: a slow fleet, with one answer a minute, is not taken for a pause."""
BLOCKS = 5
"""Few and long: answers that begin together end near each other, so the rates of short blocks are no independent draws. On 200
simulated heavy-tailed runs twelve blocks made a P90 that held in 75 to 91 %, five one that holds in 82 to 98 %, mostly 90."""
FEWEST_BLOCKS = 4
"""Fewer blocks say nothing about the spread, so there is no P90 then."""

_T90 = (3.08, 1.89, 1.64, 1.53, 1.48, 1.44, 1.41, 1.40, 1.38, 1.37, 1.36)
"""90 % quantile of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True)
class Sample:
    """Totals of a run at one moment, UNIX seconds."""

    at_s: float
    rows: int
    completion_tokens: int


@dataclass(frozen=True)
class Rates:
    """Rows per second; None where the samples do not tell."""

    window: float | None
    lifetime: float | None
    tokens_per_s: float | None


@dataclass(frozen=True)
class Eta:
    """Seconds until the last row; `p90` is None while the spread of the rate is not known."""

    p50: float
    p90: float | None


def gap_s(samples: Sequence[Sample]) -> float:
    """The shortest step between samples that counts as a gap."""
    steps = [after.at_s - before.at_s for before, after in pairwise(samples)]
    return max(SHORTEST_GAP_S, GAP_STEPS * median(steps)) if steps else SHORTEST_GAP_S


def stretches(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples, oldest first, cut at gaps, and where totals or time run backwards (the counters were rebuilt)."""
    gap = gap_s(samples)
    cut: list[list[Sample]] = []
    for sample in samples:
        last = cut[-1][-1] if cut else None
        if last is None or not 0 <= sample.at_s - last.at_s < gap or sample.rows < last.rows:
            cut.append([sample])
        else:
            cut[-1].append(sample)
    return cut


def window(samples: Sequence[Sample], now_s: float) -> list[Sample]:
    """The samples that tell the present rate: of the last stretch, no older than a minute, but never fewer than two.

    Empty if that stretch ended a gap ago (nothing is being finished), or holds one sample only.
    """
    if not samples:
        return []
    last = stretches(samples)[-1]
    if now_s - last[-1].at_s >= gap_s(samples):
        return []
    recent = [sample for sample in last if sample.at_s >= now_s - WINDOW_S]
    chosen = recent if len(recent) > 1 else last[-2:]
    return chosen if len(chosen) > 1 and chosen[-1].at_s > chosen[0].at_s else []


def rates(samples: Sequence[Sample], now_s: float) -> Rates:
    """Rates at `now_s`.

    Args:
        samples: Oldest first.
        now_s: UNIX seconds on the clock of the samples.

    Returns:
        `window`: over the last minute, 0 if the last answer lies a gap back. `lifetime`: over all stretches of work that the
        samples cover (at most an hour of it, which is what a run keeps).
    """
    parts = stretches(samples)
    worked_s = sum(part[-1].at_s - part[0].at_s for part in parts)
    rows = sum(part[-1].rows - part[0].rows for part in parts)
    lifetime = rows / worked_s if worked_s > 0 else None
    recent = window(samples, now_s)
    if not recent:
        stopped = bool(samples) and now_s - samples[-1].at_s >= gap_s(samples)
        return Rates(0.0 if stopped else None, lifetime, 0.0 if stopped else None)
    span_s = recent[-1].at_s - recent[0].at_s
    tokens = recent[-1].completion_tokens - recent[0].completion_tokens
    return Rates((recent[-1].rows - recent[0].rows) / span_s, lifetime, max(0, tokens) / span_s)


def block_rates(samples: Sequence[Sample]) -> tuple[float, list[float]]:
    """The window cut into up to five blocks of equal length: its block length in seconds, and the rate of each block.

    Totals between two samples are taken as growing evenly.
    """
    if len(samples) < 3:
        return 0.0, []
    begin, span_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    count = min(BLOCKS, len(samples) - 1)
    length = span_s / count
    levels = [_level(samples, begin + length * i) for i in range(count + 1)]
    return length, [(after - before) / length for before, after in pairwise(levels)]


def _level(samples: Sequence[Sample], at_s: float) -> float:
    for before, after in pairwise(samples):
        if at_s <= after.at_s and after.at_s > before.at_s:
            share = max(0.0, at_s - before.at_s) / (after.at_s - before.at_s)
            return before.rows + share * (after.rows - before.rows)
    return float(samples[-1].rows)


def eta(samples: Sequence[Sample], now_s: float, pending: int) -> Eta | None:
    """Time until `pending` rows are finished, if the fleet goes on as in the last minute.

    P50 is pending ÷ rate. For P90 the window's block rates are taken as independent draws: the mean rate of the k blocks to
    come lies with 90 % above r - t·s·sqrt(1/n + 1/k), where r and s are mean and standard deviation of the n blocks seen and
    t is Student's quantile. Not foreseen: workers that come or go, and the long answers at the end of a run.
    """
    if pending == 0:
        return Eta(0.0, 0.0)
    recent = window(samples, now_s)
    rate = rates(samples, now_s).window
    if not rate:
        return None
    p50 = pending / rate
    length_s, blocks = block_rates(recent)
    if len(blocks) < FEWEST_BLOCKS:
        return Eta(p50, None)
    to_come = max(1.0, p50 / length_s)
    quantile = _T90[min(len(blocks) - 1, len(_T90)) - 1]
    spread = math.sqrt(variance(blocks) * (1 / len(blocks) + 1 / to_come))
    low = fmean(blocks) - quantile * spread
    return Eta(p50, max(p50, pending / low) if low > rate / 100 else None)
