"""Why a row is not accepted: a closed list, and what is kept of such a row."""

import msgspec

REJECT_REASONS = {
    "broken_json": "not JSON, or a number that JSON does not have (NaN, 1e999)",
    "invalid_utf8": "bytes that are not UTF-8",
    "lone_surrogate": "half of a UTF-16 pair (\\ud800 … \\udfff), which is no character",
    "nul": "a NUL character, which tokenizers and databases do not survive",
    "too_large": "a line of more than 16 MiB, or an id of more than 512 characters",
    "not_an_object": "JSON, but not an object",
    "no_prompt": "none of messages, input_ids, prompt, text, or an OpenAI Batch body",
    "wrong_type": "a field of another type than its meaning asks for",
    "empty_prompt": "a prompt without content",
    "bad_message": "messages that are no conversation: no role, no content, or nothing to answer",
    "unsupported_part": "an image, audio or file part: this fleet serves text",
    "unsupported_endpoint": "an OpenAI Batch row for another endpoint than chat completions or completions",
    "unsupported_parameter": "a parameter that would change the answer and is not served, for example n or logprobs",
    "bad_sampling": "a sampling value out of its range",
    "other_model": "a row that names another model than the first one",
    "bad_id": "an id that is neither a string nor an integer",
    "duplicate_id": "an id that an earlier row has",
}
"""Reason → meaning."""

EXCERPT_CHARACTERS = 160


class Reject(msgspec.Struct, frozen=True):
    """A row that was not accepted. `line` counts from 1 in its source; `excerpt` is the beginning of the line."""

    source: str
    line: int
    reason: str
    detail: str
    excerpt: str

    def sentence(self) -> str:
        """For people, one line."""
        return f"{self.source} line {self.line}: {self.reason} ({self.detail})"


class RejectedRow(Exception):
    """A row cannot be accepted; caught where the line is known."""

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in REJECT_REASONS:
            raise KeyError(reason)
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def excerpt_of(body: bytes) -> str:
    """The beginning of a line, safe to show: what is not printable is escaped."""
    text = body[: EXCERPT_CHARACTERS * 4].decode("utf-8", errors="backslashreplace")[:EXCERPT_CHARACTERS]
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
