"""What failing rows share: values that are over-represented among them. Pure statistics; does not know rows, store or words.

A case-control comparison. Cases are all failing rows of a group; the baseline is made of rows that were chosen blindly.
Rows that merely lie beside a failing one are in neither, or a worker that fails a little in each of its batches would fill the
baseline with its own good rows and hide itself. And where not all shards are read, one row of a shard is taken: its rows share
worker and hour, so 64 of them say no more of these than one, and the test would take them for 64.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

ALPHA = 0.01
"""A value is named below this p-value, after correction."""

Traits = Mapping[str, str]
"""Trait → value of one row; a trait that is not known of a row is left out, and the row does not count for it."""


@dataclass(frozen=True)
class Shared:
    """One value: `failing` of `of_failing` failing rows have it, against `rows` of `of_rows` of the baseline.

    `p_value` is corrected. `lift` is None if no row of the baseline has the value.
    """

    trait: str
    value: str
    failing: int
    of_failing: int
    rows: int
    of_rows: int
    lift: float | None
    p_value: float


@dataclass
class Tally:
    """Rows by trait and value; `known` counts the rows of which a trait is known."""

    values: Counter[tuple[str, str]] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)

    def add(self, traits: Traits) -> None:
        """Count one row."""
        self.values.update(traits.items())
        self.known.update(traits.keys())


@dataclass
class Cases:
    """Failing rows of one group; `outside` are those of them that the baseline does not hold."""

    everyone: Tally = field(default_factory=Tally)
    outside: Tally = field(default_factory=Tally)

    def add(self, traits: Traits, *, in_baseline: bool) -> None:
        """Count one failing row."""
        self.everyone.add(traits)
        if not in_baseline:
            self.outside.add(traits)


def tail(k: int, n: int, big_k: int, big_n: int) -> float:
    """P(X ≥ k) when n rows are drawn from big_n of which big_k have a value: the one-sided exact test of Fisher.

    Args:
        k: Drawn rows with the value.
        n: Drawn rows.
        big_k: Rows with the value.
        big_n: All rows.
    """
    low, high = max(0, n + big_k - big_n), min(n, big_k)
    if k <= low:
        return 1.0
    if k > high:
        return 0.0
    if k * big_n <= n * big_k:  # below the mean: the other tail is the short one
        return 1.0 - tail(n - k + 1, n, big_n - big_k, big_n)
    term = math.exp(_log_comb(big_k, k) + _log_comb(big_n - big_k, n - k) - _log_comb(big_n, n))
    total = 0.0
    for i in range(k, high + 1):
        total += term
        ratio = (big_k - i) * (n - i) / ((i + 1) * (big_n - big_k - n + i + 1))
        if term * ratio <= total * 1e-16:  # above the mean terms only shrink
            break
        term *= ratio
    return min(1.0, total)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def pairs_examined(cases: Cases, baseline: Tally) -> int:
    """Values that could have been named: all that occur, also those that no failing row has."""
    return len(baseline.values.keys() | cases.everyone.values.keys())


def shared(cases: Cases, baseline: Tally, alpha: float = ALPHA) -> list[Shared]:
    """Values that failing rows have more often than chance explains, the least likely first.

    Args:
        cases: Failing rows.
        baseline: Rows that were chosen whatever they are; the failing ones among them included.
        alpha: Limit of the p-value after Bonferroni's correction by `pairs_examined`.
    """
    pairs = pairs_examined(cases, baseline)
    found = (_examined(pair, cases, baseline, pairs) for pair in cases.everyone.values)
    return sorted((one for one in found if one and one.p_value < alpha), key=_order)


def _order(one: Shared) -> tuple[float, int, str, str]:
    return one.p_value, -one.failing, one.trait, one.value


def _examined(pair: tuple[str, str], cases: Cases, baseline: Tally, pairs: int) -> Shared | None:
    trait, value = pair
    k, n = cases.everyone.values[pair], cases.everyone.known[trait]
    rows, of_rows = baseline.values[pair], baseline.known[trait]
    big_k, big_n = rows + cases.outside.values[pair], of_rows + cases.outside.known[trait]
    if k * big_n <= n * big_k:
        return None
    lift = (k / n) / (rows / of_rows) if rows else None
    return Shared(trait, value, k, n, rows, of_rows, lift, min(1.0, pairs * tail(k, n, big_k, big_n)))


def chosen_rows(number: int, rows: int, *, whole: bool) -> range:
    """Positions in shard `number` that belong to the baseline: all of them if `whole`, else one, not always the first."""
    if whole or rows == 0:
        return range(rows)
    position = number * 2_654_435_761 % 2**32 * rows >> 32  # Knuth's multiplicative hash: any place, the same each time
    return range(position, position + 1)


def evenly_spaced(count: int, wanted: int) -> Iterable[int]:
    """At most `wanted` positions in 0 … count − 1, all if there are no more."""
    return range(count) if count <= wanted else (index * count // wanted for index in range(wanted))
