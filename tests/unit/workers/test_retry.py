import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.contract.errors import EngineOverloaded, EngineUnavailable, FleetError, PromptRejected
from workers.contract.schema import REASONS
from workers.retry import LONGEST_BACKOFF_S, BadAnswer, GiveUp, Retry, RetryPolicy, next_step

URL = "http://127.0.0.1:1"
POLICY = RetryPolicy(max_tries=4, retry_for_s=900.0)
JITTER = random.Random(7)


def test_a_refusal_by_the_engine_is_never_tried_again() -> None:
    step = next_step(PromptRejected("p", 400, "too long"), 1, 0.0, POLICY, JITTER)
    assert step == GiveUp("rejected_by_engine", "400: too long")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineUnavailable(URL, "500 Internal Server Error"), "invalid_response"),
        (EngineUnavailable(URL, "500 Out of memory even after retracting all other requests"), "out_of_memory"),
        (EngineUnavailable(URL, "connection lost", kind="lost"), "engine_lost"),
        (BadAnswer("nan", "NaN"), "nan"),
        (BadAnswer("aborted", "Aborted"), "aborted"),
        (BadAnswer("invalid_response", "no choices"), "invalid_response"),
    ],
)
def test_what_another_try_may_cure_is_tried_until_the_count_ends(error: FleetError, reason: str) -> None:
    assert isinstance(next_step(error, 3, 10.0, POLICY, JITTER), Retry)
    last = next_step(error, 4, 10.0, POLICY, JITTER)
    assert isinstance(last, GiveUp)
    assert last.reason == reason
    assert reason in REASONS


def test_a_second_timeout_is_the_prompts_own() -> None:
    timeout = EngineUnavailable(URL, "no answer to /generate within 3600 s", kind="timeout")
    assert isinstance(next_step(timeout, 1, 0.0, POLICY, JITTER), Retry)
    assert next_step(timeout, 2, 0.0, POLICY, JITTER) == GiveUp("timeout", "no answer to /generate within 3600 s")


def test_a_request_that_never_began_does_not_count_but_time_ends_it() -> None:
    refused = EngineUnavailable(URL, "refused", kind="refused")
    step = next_step(refused, 99, 10.0, POLICY, JITTER)
    assert isinstance(step, Retry)
    assert not step.counts
    assert isinstance(next_step(refused, 1, 900.0, POLICY, JITTER), GiveUp)


def test_retry_after_is_honoured() -> None:
    step = next_step(EngineOverloaded(URL, "The request queue is full.", 7.5), 1, 0.0, POLICY, JITTER)
    assert isinstance(step, Retry)
    assert step.after_s >= 7.5
    assert not step.counts


@pytest.mark.parametrize("wish_s", [1000.0, float("inf")])
def test_a_wish_beyond_the_time_limit_is_cut_to_what_is_left_and_then_ends(wish_s: float) -> None:
    overloaded = EngineOverloaded(URL, "full", wish_s)
    assert next_step(overloaded, 1, 100.0, POLICY, JITTER) == Retry(800.0, counts=False)
    step = next_step(overloaded, 1, 900.0, POLICY, JITTER)
    assert isinstance(step, GiveUp)
    assert step.reason == "timeout"


def test_the_wait_for_an_overloaded_engine_grows_though_its_tries_do_not_count() -> None:
    waits, waited_s, policy = 0, 0.0, RetryPolicy(4, 900.0)
    while isinstance(
        step := next_step(EngineOverloaded(URL, "full"), 1, waited_s, policy, random.Random(waits), waits=waits), Retry
    ):
        waits += 1
        waited_s += step.after_s
    assert waited_s >= 900
    assert waits < 150, "requests that one prompt costs an engine that is full for a quarter of an hour"


@given(tries=st.integers(1, 40), seed=st.integers())
def test_backoff_is_bounded_and_jittered(tries: int, seed: int) -> None:
    policy = RetryPolicy(max_tries=50, retry_for_s=1e9)
    step = next_step(EngineUnavailable(URL, "500"), tries, 0.0, policy, random.Random(seed))
    assert isinstance(step, Retry)
    assert 0 <= step.after_s <= LONGEST_BACKOFF_S


@given(
    st.lists(
        st.sampled_from(
            [
                EngineUnavailable(URL, "500"),
                EngineUnavailable(URL, "x", kind="refused"),
                EngineOverloaded(URL, "full", 1.0),
                BadAnswer("nan", "NaN"),
            ]
        ),
        min_size=2000,
        max_size=2000,
    )
)
def test_every_series_of_errors_ends_in_count_and_time(errors: list[FleetError]) -> None:
    tries, waited_s, policy, jitter = 0, 0.0, RetryPolicy(max_tries=4, retry_for_s=60.0), random.Random(1)
    for error in errors:
        tries += 1
        step = next_step(error, tries, waited_s, policy, jitter)
        if isinstance(step, GiveUp):
            break
        tries -= 0 if step.counts else 1
        waited_s += step.after_s + 0.01
    else:
        pytest.fail("2,000 errors in a row and no end")
    assert tries <= policy.max_tries
    assert waited_s <= policy.retry_for_s + 1
