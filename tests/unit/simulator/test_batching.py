import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ops.simulator.batching import SLOPE, ContinuousBatch

ARRIVALS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 400)), min_size=1, max_size=30)
"""Seconds since the one before, tokens."""
LIMITS = st.integers(1, 6)


def ends_of(batch: ContinuousBatch, until_s: float = 1e6) -> list[tuple[float, str]]:
    """When each request ends, if the clock stops at every end."""
    ended = []
    now_s = batch._now_s
    while (wait_s := batch.next_end_s()) is not None and now_s < until_s:
        now_s += wait_s
        ended += [(now_s, name) for name in batch.advance(now_s)]
    return ended


def fill(batch: ContinuousBatch, arrivals: list[tuple[float, int]]) -> tuple[float, list[str]]:
    now_s, ended = 0.0, []
    for place, (gap_s, tokens) in enumerate(arrivals):
        now_s += gap_s
        ended += batch.submit(now_s, str(place), tokens)
    return now_s, ended


def test_one_request_alone_decodes_at_full_speed() -> None:
    batch = ContinuousBatch(4, tokens_per_s=100)
    assert batch.submit(0.0, "a", 250) == []
    assert batch.next_end_s() == pytest.approx(2.5)
    assert batch.advance(1.0) == []
    assert batch.decoded_of("a") == 100
    assert batch.advance(2.5) == ["a"]
    assert (batch.running, batch.queued, batch.decoded_of("a")) == (0, 0, 0)


@pytest.mark.parametrize("count", [1, 2, 16, 51])
def test_speed_falls_with_the_number_that_runs_and_the_whole_still_gains(count: int) -> None:
    batch = ContinuousBatch(64, tokens_per_s=100)
    for place in range(count):
        batch.submit(0.0, str(place), 100)
    assert batch.speed() == pytest.approx(100 / (1 + SLOPE * (count - 1)))
    assert batch.next_end_s() == pytest.approx(1 + SLOPE * (count - 1))
    if count > 1:
        fewer = ContinuousBatch(64, tokens_per_s=100)
        for place in range(count - 1):
            fewer.submit(0.0, str(place), 100)
        assert batch.speed() * count > fewer.speed() * (count - 1)


def test_fifty_one_decode_at_half_the_speed_of_one() -> None:
    batch = ContinuousBatch(51, tokens_per_s=100)
    for place in range(51):
        batch.submit(0.0, str(place), 100)
    assert batch.speed() == pytest.approx(50)


def test_those_that_remain_go_faster_when_one_has_ended() -> None:
    batch = ContinuousBatch(2, tokens_per_s=100, slope=1.0)
    batch.submit(0.0, "short", 50)
    batch.submit(0.0, "long", 150)
    assert batch.advance(1.0) == ["short"]  # both at 50 tokens a second
    assert batch.next_end_s() == pytest.approx(1.0)  # 100 left, at 100 a second
    assert batch.advance(2.0) == ["long"]


def test_a_request_waits_for_a_slot_and_decodes_nothing_before() -> None:
    batch = ContinuousBatch(1, tokens_per_s=10)
    batch.submit(0.0, "first", 10)
    batch.submit(0.0, "second", 10)
    assert (batch.running, batch.queued) == (1, 1)
    assert not batch.is_running("second")
    batch.advance(0.9)
    assert batch.decoded_of("second") == 0
    assert batch.advance(1.5) == ["first"]
    assert batch.is_running("second")
    assert batch.decoded_of("second") == 5
    assert batch.advance(2.0) == ["second"]


def test_a_frozen_batch_decodes_nothing_and_goes_on_where_it_was() -> None:
    batch = ContinuousBatch(1, tokens_per_s=10)
    batch.submit(0.0, "a", 10)
    batch.advance(0.5)
    batch.frozen = True
    assert batch.next_end_s() is None
    assert batch.advance(100.0) == []
    assert batch.decoded_of("a") == 5
    batch.frozen = False
    assert batch.advance(100.4) == []
    assert batch.advance(100.5) == ["a"]


def test_a_removed_request_makes_room() -> None:
    batch = ContinuousBatch(1, tokens_per_s=10)
    for name in ("runs", "waits", "next"):
        batch.submit(0.0, name, 10)
    assert batch.remove(0.1, "waits") == []
    assert batch.remove(0.2, "runs") == []
    assert batch.is_running("next")
    assert batch.remove(0.3, "unknown") == []
    assert batch.advance(1.2) == ["next"]
    assert batch.next_end_s() is None


def test_time_that_stands_still_or_goes_back_changes_nothing() -> None:
    batch = ContinuousBatch(1, tokens_per_s=10)
    batch.submit(5.0, "a", 10)
    assert batch.advance(5.0) == batch.advance(1.0) == []
    assert batch.advance(6.0) == ["a"]


def test_busy_slot_seconds_and_the_most_that_ran_are_counted() -> None:
    batch = ContinuousBatch(2, tokens_per_s=10, slope=0.0)
    for name in ("a", "b", "c"):
        batch.submit(0.0, name, 10)
    batch.advance(10.0)
    assert batch.busy_slot_seconds == pytest.approx(3.0)
    assert batch.most_running == 2
    assert batch.decoded_total == pytest.approx(30)


@given(ARRIVALS, LIMITS)
def test_every_request_ends_once_and_every_token_is_decoded(arrivals: list[tuple[float, int]], limit: int) -> None:
    batch = ContinuousBatch(limit, tokens_per_s=50)
    _, ended = fill(batch, arrivals)
    ended += batch.advance(1e6)
    assert sorted(ended) == sorted(str(place) for place in range(len(arrivals)))
    assert batch.decoded_total == pytest.approx(sum(tokens for _, tokens in arrivals))
    assert (batch.running, batch.queued) == (0, 0)
    assert batch.most_running <= limit


@given(ARRIVALS, LIMITS)
def test_requests_start_in_the_order_in_which_they_came(arrivals: list[tuple[float, int]], limit: int) -> None:
    batch = ContinuousBatch(limit, tokens_per_s=50)
    started: list[str] = []

    def look() -> None:
        running = [str(place) for place in range(len(arrivals)) if batch.is_running(str(place)) and str(place) not in started]
        started.extend(running)

    now_s = 0.0
    for place, (gap_s, tokens) in enumerate(arrivals):
        now_s += gap_s
        while (wait_s := batch.next_end_s()) is not None and batch._now_s + wait_s < now_s:
            batch.advance(batch._now_s + wait_s)
            look()
        batch.submit(now_s, str(place), tokens)
        look()
        assert batch.running <= limit
        assert batch.queued == 0 or batch.running == limit  # no slot stays free while one waits
    while (wait_s := batch.next_end_s()) is not None:
        batch.advance(batch._now_s + wait_s + 1e-9)
        look()
    assert started == sorted(started, key=int)


@given(ARRIVALS, LIMITS, st.integers(2, 9))
def test_it_does_not_matter_how_often_one_looks(arrivals: list[tuple[float, int]], limit: int, looks: int) -> None:
    seldom, often = (ContinuousBatch(limit, tokens_per_s=50) for _ in range(2))
    now_s, ended = fill(seldom, arrivals)
    _, ended_often = fill(often, arrivals)
    for step in range(1, looks + 1):
        ended_often += often.advance(now_s + 1e4 * step / looks)
    ended += seldom.advance(now_s + 1e4)
    assert ended == ended_often
    assert seldom.decoded_total == pytest.approx(often.decoded_total)


@given(ARRIVALS, LIMITS, st.data())
def test_a_removed_request_never_ends_and_the_others_do(
    arrivals: list[tuple[float, int]], limit: int, data: st.DataObject
) -> None:
    batch = ContinuousBatch(limit, tokens_per_s=50)
    now_s, ended = fill(batch, arrivals)
    names = [str(place) for place in range(len(arrivals))]
    gone = data.draw(st.lists(st.sampled_from(names), unique=True))
    alive = set(gone) - set(ended)
    for name in gone:
        now_s += 0.01
        before = set(batch.advance(now_s))
        ended += before
        alive -= before
        ended += batch.remove(now_s, name)
    ended += batch.advance(1e6)
    assert sorted(ended) == sorted(set(names) - alive)


@given(st.integers(1, 10**10), st.floats(0.1, 1e6))
@example(67108863, 2.00001)
def test_a_long_run_still_ends(tokens: int, tokens_per_s: float) -> None:
    batch = ContinuousBatch(2, tokens_per_s)
    batch.submit(0.0, "long", tokens)
    batch.submit(0.0, "other", max(1, tokens // 3))
    assert [name for _, name in ends_of(batch, until_s=1e13)] in (["other", "long"], ["long", "other"])
