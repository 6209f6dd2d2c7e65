"""Decide what follows a try of one prompt that gave no answer. Pure: errors and counts in, a decision out.

Bounded in count (`max_tries`) and in the time that is waited between tries (`retry_for_s`; each try has its own timeout); a
wait for an overloaded or absent engine is bounded in time only, because no request was begun. Deaths of the engine are bounded
by themselves: most of those in flight then are innocent. Backoff is exponential with full
jitter, so that the requests that one event broke do not come back as one.
"""

import random
from dataclasses import dataclass

from workers.contract.errors import EngineOverloaded, EngineUnavailable, FleetError, PromptRejected
from workers.suspects import MAX_DEATHS

FIRST_BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 20.0
TRIES_AFTER_TIMEOUT = 2
"""A prompt may have met a stall once; a second time it is the prompt, and each try holds a slot for long."""

_OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class RetryPolicy:
    """Bounds on the tries of one prompt."""

    max_tries: int
    retry_for_s: float


@dataclass(frozen=True)
class Retry:
    """Try again after `after_s`; `counts` unless the request never began."""

    after_s: float
    counts: bool


@dataclass(frozen=True)
class GiveUp:
    """The prompt has failed with `reason`."""

    reason: str
    message: str


def backoff_s(waits: int, jitter: random.Random) -> float:
    """Full jitter: uniform below the exponential ceiling."""
    return jitter.uniform(0, min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(waits, 32)))


def next_step(
    error: FleetError,
    tries: int,
    waited_s: float,
    policy: RetryPolicy,
    jitter: random.Random,
    *,
    waits: int | None = None,
    deaths: int = 0,
) -> Retry | GiveUp:
    """What follows.

    Args:
        error: What the engine's client, or the judge (`BadAnswer`), raised.
        tries: Tries that count so far, this one included.
        waited_s: Between tries so far, in all.
        policy: Bounds.
        jitter: Source of randomness.
        waits: How often it was waited already, for whatever cause; the backoff grows with it. None: tries.
        deaths: Deaths of engines and workers under this prompt so far, if this try ended in one; else 0.
    """
    if isinstance(error, PromptRejected):
        return GiveUp("rejected_by_engine", f"{error.status}: {error.message}")
    if deaths >= MAX_DEATHS:
        return GiveUp("engine_lost", f"in flight at {deaths} deaths of its engine or worker, at the last one alone: {error}")
    counts = not deaths and not (
        isinstance(error, EngineOverloaded) or (isinstance(error, EngineUnavailable) and error.kind == "refused")
    )
    max_tries = policy.max_tries
    if isinstance(error, EngineUnavailable) and error.kind == "timeout":
        max_tries = min(max_tries, TRIES_AFTER_TIMEOUT)
    if (counts and tries >= max_tries) or waited_s >= policy.retry_for_s:
        return GiveUp(*_last_word(error))
    wait_s = backoff_s(tries if waits is None else waits, jitter)
    if isinstance(error, EngineOverloaded):
        wait_s = max(wait_s, error.retry_after_s or FIRST_BACKOFF_S)
    return Retry(min(wait_s, policy.retry_for_s - waited_s), counts)


def _last_word(error: FleetError) -> tuple[str, str]:
    if isinstance(error, BadAnswer):
        return error.reason, error.message
    if isinstance(error, EngineUnavailable):
        if _OUT_OF_MEMORY in error.cause.lower():
            return "out_of_memory", error.cause
        return {"timeout": "timeout", "error": "invalid_response"}.get(error.kind, "engine_lost"), error.cause
    return "timeout", str(error)


class BadAnswer(FleetError):
    """An answer that another try may better: an accident of the engine, or something that is not an answer."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason, self.message = reason, message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"
