"""Rate and time left: what must hold whatever the samples are, and the cases that went wrong in other tools."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.progress.rates import Eta, Sample, block_rates, eta, gap_s, rates, stretches, window

steps = st.lists(st.tuples(st.floats(2, 10), st.integers(0, 50)), min_size=0, max_size=60)


def series(steps: list[tuple[float, int]], begin_s: float = 1000.0, base: int = 0) -> list[Sample]:
    samples = [Sample(begin_s, base, base * 10)]
    for length_s, rows in steps:
        last = samples[-1]
        samples.append(Sample(last.at_s + length_s, last.rows + rows, last.completion_tokens + rows * 10))
    return samples


def steady(count: int, per_step: int = 10, step_s: float = 2.0, begin_s: float = 1000.0, base: int = 0) -> list[Sample]:
    return series([(step_s, per_step)] * count, begin_s, base)


@given(steps, st.integers(0, 10**6), st.floats(0, 100))
def test_what_holds_for_all_series(steps: list[tuple[float, int]], pending: int, later_s: float) -> None:
    samples = series(steps)
    now_s = samples[-1].at_s + later_s
    told = rates(samples, now_s)
    fastest = max([rows / length_s for length_s, rows in steps], default=0.0)
    for rate in (told.window, told.lifetime):
        assert rate is None or -1e-9 <= rate <= fastest + 1e-9
    left = eta(samples, now_s, pending)
    if left is not None:
        assert left.p50 >= 0
        assert math.isfinite(left.p50)
        assert left.p90 is None or left.p90 >= left.p50
    elif pending:
        assert not told.window
    assert sum(len(part) for part in stretches(samples)) == len(samples)


@given(steps, st.integers(0, 10**9), st.floats(-(10**6), 10**6))
def test_neither_rows_before_the_first_sample_nor_the_time_of_day_change_anything(
    steps: list[tuple[float, int]], base: int, shift_s: float
) -> None:
    plain, moved = series(steps), series(steps, 1000.0 + round(shift_s), base)
    first, second = rates(plain, plain[-1].at_s), rates(moved, moved[-1].at_s)
    assert (first.window is None) == (second.window is None)
    if first.window is not None and second.window is not None:
        assert first.window == pytest.approx(second.window, rel=1e-3, abs=1e-3)


@given(st.integers(1, 30), st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_pending_takes_longer(per_step: int, one: int, more: int) -> None:
    samples = steady(30, per_step)
    few, many = eta(samples, samples[-1].at_s, one), eta(samples, samples[-1].at_s, one + more)
    assert few is not None
    assert many is not None
    assert few.p50 < many.p50


@given(steps.filter(lambda found: len(found) >= 3))
def test_blocks_hold_all_rows_of_the_window(steps: list[tuple[float, int]]) -> None:
    samples = series(steps)
    length_s, blocks = block_rates(samples)
    assert sum(blocks) * length_s == pytest.approx(samples[-1].rows - samples[0].rows, abs=1e-6)
    assert all(rate >= -1e-9 for rate in blocks)


def test_a_steady_run_has_its_rate_and_no_spread() -> None:
    samples = steady(100)
    told = rates(samples, samples[-1].at_s)
    assert (told.window, told.lifetime, told.tokens_per_s) == (5.0, 5.0, 50.0)
    assert eta(samples, samples[-1].at_s, 500) == Eta(100.0, 100.0)


def test_an_earlier_life_counts_neither_as_rows_nor_as_time() -> None:
    earlier = steady(50, per_step=100)
    later = steady(10, per_step=2, begin_s=earlier[-1].at_s + 86_400, base=earlier[-1].rows + 5000)
    told = rates(earlier + later, later[-1].at_s)
    assert told.window == 1.0
    assert told.lifetime == pytest.approx((50 * 100 + 10 * 2) / (100 + 20))


def test_a_pause_of_two_minutes_is_a_gap_for_a_fast_fleet() -> None:
    before = steady(30)
    after = steady(2, begin_s=before[-1].at_s + 120, base=before[-1].rows)
    assert rates(before + after, after[-1].at_s).window == 5.0


def test_a_slow_fleet_with_an_answer_a_minute_has_a_rate() -> None:
    samples = steady(20, per_step=1, step_s=60.0)
    assert gap_s(samples) == 1200
    assert rates(samples, samples[-1].at_s + 50).window == pytest.approx(1 / 60)


def test_a_run_that_stands_still_has_rate_zero_and_no_eta() -> None:
    samples = steady(30)
    told = rates(samples, samples[-1].at_s + 100)
    assert (told.window, told.lifetime, told.tokens_per_s) == (0.0, 5.0, 0.0)
    assert eta(samples, samples[-1].at_s + 100, 10) is None


def test_counters_that_were_rebuilt_downwards_are_no_negative_rate() -> None:
    samples = [*steady(10, base=1000), *steady(10, begin_s=1022.0, base=7)]
    assert rates(samples, samples[-1].at_s).window == 5.0


@pytest.mark.parametrize("samples", [[], steady(0)])
def test_too_little_is_not_guessed(samples: list[Sample]) -> None:
    told = rates(samples, 1000.0)
    assert (told.window, told.lifetime, told.tokens_per_s) == (None, None, None)
    assert eta(samples, 1000.0, 5) is None
    assert eta(samples, 1000.0, 0) == Eta(0.0, 0.0)
    assert window(samples, 1000.0) == []


def test_the_window_is_a_minute() -> None:
    samples = [*steady(100, per_step=2), *steady(40, per_step=20, begin_s=1202.0, base=200)]
    assert rates(samples, samples[-1].at_s).window == 10.0


def test_few_samples_have_a_p50_and_no_p90() -> None:
    samples = steady(3)
    assert eta(samples, samples[-1].at_s, 50) == Eta(10.0, None)


def test_a_wide_spread_shows_in_p90() -> None:
    calm, wild = steady(30), series(([(2.0, 0)] * 5 + [(2.0, 20)] * 5) * 3)
    quiet, loud = (eta(found, found[-1].at_s, 3000) for found in (calm, wild))
    assert quiet is not None
    assert loud is not None
    assert quiet.p90 is not None
    assert loud.p90 is not None
    assert loud.p90 > quiet.p90


def test_p90_holds_for_nine_of_ten_runs_whose_rate_is_random() -> None:
    import random

    rng = random.Random(7)
    held = 0
    for _ in range(400):
        seen = series([(2.0, rng.randint(0, 20)) for _ in range(30)])
        left = eta(seen, seen[-1].at_s, 1000)
        assert left is not None
        assert left.p90 is not None
        took, rows = 0.0, 0
        while rows < 1000:
            rows += rng.randint(0, 20)
            took += 2.0
        held += took <= left.p90
    assert 0.84 <= held / 400 <= 0.96
