"""The statistics of `producer failures`: a cause is named, noise is not."""

import itertools
import math
import random

import pytest

from producer.failures.sharing import Cases, Tally, chosen_rows, evenly_spaced, pairs_examined, shared, tail
from producer.failures.traits import bin_of, length_bucket, normalised


def exact(k: int, n: int, big_k: int, big_n: int) -> float:
    ways = sum(math.comb(big_k, i) * math.comb(big_n - big_k, n - i) for i in range(k, min(n, big_k) + 1))
    return ways / math.comb(big_n, n)


def test_the_tail_is_that_of_fishers_tea_tasting() -> None:
    assert tail(4, 4, 4, 8) == pytest.approx(1 / 70)
    assert tail(3, 4, 4, 8) == pytest.approx(17 / 70)
    assert (tail(0, 4, 4, 8), tail(5, 4, 4, 8)) == (1.0, 0.0)


def test_the_tail_equals_the_sum_in_whole_numbers() -> None:
    chance = random.Random(7)
    for _ in range(500):
        big_n = chance.randint(1, 300)
        big_k, n = chance.randint(0, big_n), chance.randint(0, big_n)
        k = chance.randint(0, n)
        assert tail(k, n, big_k, big_n) == pytest.approx(exact(k, n, big_k, big_n), rel=1e-8, abs=1e-13)


def test_the_tail_of_millions_of_rows_is_quick_and_does_not_break() -> None:
    assert tail(1_000_000, 1_000_000, 2_000_000, 100_000_000) == 0.0
    assert tail(20_000, 1_000_000, 2_000_000, 100_000_000) == pytest.approx(0.5, abs=0.01)


def simulated(seed: int, *, planted: bool, whole: bool) -> tuple[Cases, Tally]:
    """A run of 400 shards of 16 rows; all rows of a shard have one worker of eight and one bin of time. 5 % fail.

    Of worker 3, 30 % fail if planted. The baseline is everything, or one row of every second shard.
    """
    chance = random.Random(seed)
    cases, baseline = Cases(), Tally()
    for shard in range(400):
        worker = chance.randrange(8)
        chosen = chosen_rows(shard, 16, whole=whole) if whole or shard % 2 == 0 else range(0)
        for row in range(16):
            traits = {"worker": f"gpu{worker}", "started": str(shard // 8), "length": str(chance.randrange(7)), "tries": "1"}
            if row in chosen:
                baseline.add(traits)
            if chance.random() < (0.3 if planted and worker == 3 else 0.05):
                cases.add(traits, in_baseline=row in chosen)
    return cases, baseline


@pytest.mark.parametrize("whole", [True, False])
def test_a_planted_cause_among_noise_is_named(whole: bool) -> None:
    for seed in range(10):
        named = shared(*simulated(seed, planted=True, whole=whole))
        assert named, seed
        assert (named[0].trait, named[0].value) == ("worker", "gpu3")
        assert named[0].lift is not None
        assert named[0].lift > 2


@pytest.mark.parametrize("whole", [True, False])
def test_noise_names_nothing(whole: bool) -> None:
    assert sum(bool(shared(*simulated(seed, planted=False, whole=whole))) for seed in range(200)) <= 2


def test_a_worker_that_fails_a_little_everywhere_is_not_hidden_by_its_own_good_rows() -> None:
    cases, baseline = Cases(), Tally()
    for batch in range(1000):
        worker = {"worker": f"gpu{batch % 10}"}
        for row in range(64):
            in_baseline = batch % 50 < 10 and row == 5
            if in_baseline:
                baseline.add(worker)
            if batch % 10 == 0 and row == 0:
                cases.add(worker, in_baseline=in_baseline)
    [named] = shared(cases, baseline)
    assert (named.value, named.failing, named.of_failing, named.lift) == ("gpu0", 100, 100, 10)


def test_a_rows_unknown_traits_do_not_count_for_them() -> None:
    cases, baseline = Cases(), Tally()
    for row in range(100):
        baseline.add({"length": "1"} if row % 2 else {})
    for _ in range(10):
        cases.add({}, in_baseline=False)
    assert (baseline.known["length"], shared(cases, baseline)) == (50, [])
    cases.add({"length": "2"}, in_baseline=False)
    assert pairs_examined(cases, baseline) == 2
    [named] = shared(cases, baseline, alpha=0.05)
    assert (named.rows, named.of_rows, named.lift) == (0, 50, None)
    assert named.p_value == pytest.approx(2 / 51)


@pytest.mark.parametrize(("count", "wanted"), [(0, 5), (3, 5), (5, 5), (1000, 7), (101, 100)])
def test_a_sample_is_spread_over_everything(count: int, wanted: int) -> None:
    positions = list(evenly_spaced(count, wanted))
    assert len(set(positions)) == len(positions) == min(count, wanted)
    assert all(0 <= position < count for position in positions)
    steps = [later - earlier for earlier, later in itertools.pairwise(positions)]
    assert not steps or max(steps) - min(steps) <= 1


def test_traits_are_put_in_bins() -> None:
    assert [length_bucket(tokens) for tokens in (0, 1, 2, 3, 4, 255, 256)] == [
        *(None, "1", "2-3", "2-3", "4-7"),
        *("128-255", "256-511"),
    ]
    assert bin_of(1_780_000_000.0) == "2026-05-28 20:20"
    assert normalised("input of 5000 tokens > 4096") == "input of # tokens > #"


def test_the_one_row_of_a_shard_is_not_always_the_first() -> None:
    chosen = [chosen_rows(number, 64, whole=False) for number in range(1000)]
    assert all(len(one) == 1 and 0 <= one[0] < 64 for one in chosen)
    assert len({one[0] for one in chosen}) == 64
    assert (chosen_rows(3, 5, whole=True), len(chosen_rows(3, 0, whole=False))) == (range(5), 0)
