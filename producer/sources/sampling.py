"""Sampling values in a row: names, types and ranges. SGLang's ranges: sampling/sampling_params.py of 0.5.11."""

import math
from typing import Any

import msgspec

from producer.sources.rejects import RejectedRow
from workers.contract.schema import Sampling
from workers.contract.wording import mistake_of

MAX_STOP_STRINGS = 64
_ALIASES = {"max_completion_tokens": "max_tokens", "max_new_tokens": "max_tokens", "sampling_seed": "seed"}
_NAMES = frozenset(Sampling.__struct_fields__) - {"thinking"} | frozenset(_ALIASES)
SAMPLING_FIELDS = _NAMES | {"chat_template_kwargs"}
"""Fields of a row that say how to generate."""

_RANGES: dict[str, tuple[str, Any]] = {
    "max_tokens": ("at least 1, below 2^31", lambda value: 1 <= value < 1 << 31),
    "temperature": ("0 or more, and finite", lambda value: 0 <= value < math.inf),
    "top_p": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": ("-1, or at least 1 and below 2^31", lambda value: value == -1 or 1 <= value < 1 << 31),
    "min_p": ("0 to 1", lambda value: 0 <= value <= 1),
    "presence_penalty": ("-2 to 2", lambda value: -2 <= value <= 2),
    "frequency_penalty": ("-2 to 2", lambda value: -2 <= value <= 2),
    "repetition_penalty": ("above 0 and at most 2", lambda value: 0 < value <= 2),
    "seed": ("an integer of 64 bits", lambda value: -(1 << 63) <= value < 1 << 63),
    "stop": (
        f"at most {MAX_STOP_STRINGS} strings, none empty",
        lambda value: len(value) <= MAX_STOP_STRINGS and all(value),
    ),
}


def problem_with(sampling: Sampling) -> str | None:
    """What is out of range, as a sentence, or None."""
    for name, (wanted, holds) in _RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not holds(value):
            shown = list(value) if isinstance(value, tuple) else value
            return f"{name} is {shown!r}, expected {wanted}"
    return None


def sampling_in(fields: dict[str, Any]) -> Sampling | None:
    """The sampling values that a row carries, or None.

    Raises:
        RejectedRow: A value of the wrong type or out of range, or told to the chat template and not served.
    """
    given: dict[str, Any] = {}
    for name in _NAMES.intersection(fields):
        value = fields[name]
        if value is None:
            continue
        if isinstance(value, bool):
            raise RejectedRow("wrong_type", f"{name} is {value}, expected a number")
        if name == "stop" and isinstance(value, str):
            value = [value]
        given[_ALIASES.get(name, name)] = value
    thinking = _thinking_in(fields.get("chat_template_kwargs"))
    if thinking is not None:
        given["thinking"] = thinking
    if not given:
        return None
    try:
        sampling = msgspec.convert(given, Sampling)
    except msgspec.ValidationError as error:
        mistake = mistake_of(error)
        raise RejectedRow("wrong_type", mistake.sentence() if mistake else str(error)) from error
    problem = problem_with(sampling)
    if problem is not None:
        raise RejectedRow("bad_sampling", problem)
    return sampling


def _thinking_in(template: object) -> object:
    if template is None:
        return None
    if not isinstance(template, dict):
        raise RejectedRow("wrong_type", f"chat_template_kwargs is a {type(template).__name__}, expected an object")
    for name, value in template.items():
        if name != "enable_thinking" and value is not None:
            raise RejectedRow("unsupported_parameter", f"chat_template_kwargs.{name[:80]}")
    return template.get("enable_thinking")
