"""What is known of a row that may have to do with its failing: names and values, no text of prompts or answers. Pure."""

import re
import time

from producer.failures.sharing import Traits
from workers.contract.schema import Completion

BIN_S = 600
"""Ten minutes: as short as an incident that a person looks for in a log."""
_DIGITS = re.compile(r"[0-9]+")


def traits_of(row: Completion) -> Traits:
    """Traits of one outcome; what its engine did not say is left out."""
    told = row.provenance
    found: dict[str, str | None] = {
        "worker": told.worker,
        "engine": engine_of(row),
        "finish_reason": row.finish_reason,
        "started": None if told.started_at is None else bin_of(told.started_at),
        "prompt_tokens": length_bucket(row.usage.prompt_tokens),
        "redelivered": "yes" if told.attempt > 1 else "no",
        "tries": str(told.tries),
    }
    return {name: value for name, value in found.items() if value is not None}


def engine_of(row: Completion) -> str | None:
    """Version and model; None if the row tells neither."""
    told = row.provenance
    if told.engine_version is None and told.model is None:
        return None
    return f"{told.engine_version or '?'}, {told.model or '?'}"


def bin_of(at_s: float) -> str:
    """The ten minutes that a time lies in, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s // BIN_S * BIN_S))


def length_bucket(tokens: int) -> str | None:
    """Powers of two: `128-255`; None for 0, which is what a row has whose engine did not count."""
    if tokens <= 0:
        return None
    low = 1 << (tokens.bit_length() - 1)
    return f"{low}-{2 * low - 1}" if low > 1 else "1"


def normalised(message: str) -> str:
    """A message with each number as `#`, so that the same complaint about two prompts is one."""
    return _DIGITS.sub("#", message[:300])
