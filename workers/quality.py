"""Judge an answer: HTTP 200 is not success (DESIGN §7). Pure.

Knows what a finished answer looks like. Which findings fail a prompt and which only flag it is fixed for now:
empty, aborted, nan and truncated_thinking fail, truncated is flagged.
"""

import unicodedata
from dataclasses import dataclass

from workers.answers import Generated
from workers.contract.schema import Prompt

NAN_MARK = "NaN happened"
"""What SGLang's guard writes as matched stop when a sampled token lies outside the vocabulary."""

FINISHED = frozenset({"stop", "length", "tool_calls", "function_call", "abort"})
TRUNCATED = "truncated"
FLAGS = (TRUNCATED,)
"""Quality flags, a closed list: a row that carries one is still `ok`."""

ANOTHER_TRY_HELPS = frozenset({"aborted", "nan", "invalid_response"})
"""The engine's accidents. An empty or truncated answer is the model's, and comes again at full price."""


@dataclass(frozen=True)
class Verdict:
    """`reason` None means ok; `flags` are findings that do not fail the prompt."""

    reason: str | None = None
    message: str | None = None
    flags: tuple[str, ...] = ()


def is_visible(text: str) -> bool:
    """Whether a reader sees anything: spaces, control and format characters (zero-width ones) are nothing."""
    return any(not char.isspace() and unicodedata.category(char) not in {"Cc", "Cf"} for char in text)


def judge(prompt: Prompt, generated: Generated) -> Verdict:
    """Decide whether an answer is one.

    Args:
        prompt: What was asked; messages may be answered with reasoning apart, text and ids are not.
        generated: As the engine sent it.
    """
    if generated.finish == "abort":
        return Verdict("aborted", generated.message or "the engine aborted the request")
    if generated.matched == NAN_MARK:
        return Verdict("nan", "the engine sampled from NaN logits")
    if generated.finish not in FINISHED:
        return Verdict("invalid_response", f"finish reason {str(generated.finish)[:40]!r} is none that an answer has")
    answer = generated.answer
    visible, reasoning = bool(is_visible(answer.content or "") or answer.tool_calls), answer.reasoning_content or ""
    spent = f"{generated.usage.completion_tokens} tokens"
    if generated.finish == "length":
        if prompt.messages is not None and reasoning and not visible:
            return Verdict("truncated_thinking", f"the budget ended while thinking, after {spent}")
        if not visible:
            return Verdict("empty", f"nothing visible in {spent}")
        return Verdict(flags=(TRUNCATED,))
    if not visible:
        thought = "only thinking" if reasoning.strip() else "nothing visible"
        return Verdict("empty", f"{thought} in {spent}")
    return Verdict()
