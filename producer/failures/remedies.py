"""Reason → meaning and remedy: the one place. The README's table is held to it by a test. Knows words only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedy:
    """What a reason or flag means, and what a person does about it."""

    meaning: str
    remedy: str


REMEDIES = {
    "rejected_by_engine": Remedy(
        "the engine refused it (4xx), for example as too long; its message is kept",
        "shorten it, or raise the engine's context length",
    ),
    "timeout": Remedy(
        "no answer within `FLEET_REQUEST_TIMEOUT_S`, or no engine took it in time",
        "lower `--max-tokens`, or raise the timeout",
    ),
    "engine_lost": Remedy(
        "its engine or worker died three times with this prompt in flight, the last time with no other suspect beside it; "
        "or the connection broke in every try",
        "look at the engine's log; leave the prompt out",
    ),
    "aborted": Remedy(
        "the engine aborted it (HTTP 200, finish type abort) in every try",
        "look for a restart, a full KV pool or an operator",
    ),
    "nan": Remedy(
        "the engine sampled from NaN logits in every try",
        "lower precision or a broken kernel: check the engine",
    ),
    "out_of_memory": Remedy(
        "the engine ran out of memory even alone",
        "lower `--max-tokens` or the engine's running limit",
    ),
    "empty": Remedy(
        "HTTP 200 with nothing visible",
        "check chat template, stop strings and reasoning parser",
    ),
    "truncated_thinking": Remedy(
        "the budget ended while thinking",
        "raise `--max-tokens`",
    ),
    "truncated": Remedy(
        "cut at the budget, where a policy fails that (reserved: today it is a flag)",
        "raise `--max-tokens`",
    ),
    "unclosed_thinking": Remedy(
        "thinking without its end (reserved: no policy sets it yet)",
        "check the reasoning parser",
    ),
    "marker_leak": Remedy(
        "thinking markers in the answer (reserved)",
        "check the reasoning parser",
    ),
    "repetition": Remedy(
        "the answer loops (reserved)",
        "sampling penalties; lower temperature extremes",
    ),
    "invalid_response": Remedy(
        "not an answer, or HTTP 500, in every try",
        "look at the engine's log",
    ),
    "cancelled": Remedy(
        "the run was cancelled first",
        "`producer resume`, then `producer requeue --reason cancelled`",
    ),
}
"""For each reason of `workers.contract.schema.REASONS`."""

FLAG_REMEDIES = {"truncated": Remedy("cut at `max_tokens`; the row is ok", "raise `--max-tokens`")}
"""For each flag of `workers.quality.FLAGS`."""

UNKNOWN = Remedy("written by a version that this one does not know", "upgrade this program")


def remedy_of(kind: str, name: str) -> Remedy:
    """Of a `reason` or a `flag`."""
    return (REMEDIES if kind == "reason" else FLAG_REMEDIES).get(name, UNKNOWN)
