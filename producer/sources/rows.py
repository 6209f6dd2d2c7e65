"""A row of any known shape as a prompt. Recognised by its fields, row by row, so that a file may mix shapes.

Order of recognition: an OpenAI Batch row (`body` with `url`), then `messages`, `input_ids`, `prompt`, `text`. Other fields of a
plain row are columns of somebody's data set and are passed over; in a Batch body, what would change the answer must be served.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from producer.sources.json_rows import JsonObject, decode_object, raw_fields
from producer.sources.lines import MAX_LINE_BYTES, Line
from producer.sources.messages import check_messages
from producer.sources.rejects import Reject, RejectedRow, excerpt_of
from producer.sources.sampling import sampling_in
from workers.contract.schema import Prompt, PromptId, Sampling

MAX_ID_CHARACTERS = 512
_LARGEST_ID = 1 << 63

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
_HARMLESS = frozenset({"user", "metadata", "store", "stream_options", "model", "messages", "prompt", "tools", "service_tier"})
_SERVED = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop",
        "seed",
        "chat_template_kwargs",
        "input_ids",
    }
)
_NEUTRAL = {
    "n": 1,
    "stream": False,
    "logprobs": False,
    "top_logprobs": 0,
    "echo": False,
    "best_of": 1,
    "logit_bias": {},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
}
"""Parameters that are not served, and the value with which they change nothing."""


@dataclass
class ModelSeen:
    """The model that the first Batch row names: one run goes to one model."""

    name: str | None = None

    def check(self, body: JsonObject) -> None:
        """Remember the first, refuse another."""
        name = body.get("model")
        if name is None:
            return
        if not isinstance(name, str):
            raise RejectedRow("wrong_type", f"model is a {type(name).__name__}, expected a string")
        if self.name is None:
            self.name = name
        elif name != self.name:
            raise RejectedRow("other_model", f"{name}, the first row names {self.name}")


@dataclass(frozen=True)
class _Content:
    shape: str
    messages: msgspec.Raw | None = None
    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    tools: msgspec.Raw | None = None
    sampling: Sampling | None = None

    def digest(self) -> str:
        if self.messages is not None:
            body = bytes(self.messages) + bytes(self.tools or b"")
        elif self.text is not None:
            body = self.text.encode()
        else:
            body = repr(self.input_ids).encode()
        return hashlib.sha256(self.shape.encode() + b"\0" + body).hexdigest()[:12]


def parse_row(line: Line, row: int, model: ModelSeen) -> Prompt | Reject:
    """A line as a prompt, or why not.

    Args:
        line: Not blank.
        row: Its 0-based position among all rows of all sources.
        model: Shared by all rows of a run.
    """
    try:
        if line.too_long:
            raise RejectedRow("too_large", f"more than {MAX_LINE_BYTES >> 20} MiB")
        fields = decode_object(line.body)
        given_id = _id_in(fields)
        content = _content_of(fields, line.body, model)
    except RejectedRow as error:
        return Reject(line.source, line.number, error.reason, error.detail, excerpt_of(line.body))
    return Prompt(
        id=f"row-{row}-{content.digest()}" if given_id is None else given_id,
        row=row,
        messages=content.messages,
        text=content.text,
        input_ids=content.input_ids,
        tools=content.tools,
        sampling=content.sampling,
    )


def shape_of(prompt: Prompt) -> str:
    """What a prompt was recognised as, for people."""
    if prompt.messages is not None:
        return "messages"
    return "token ids" if prompt.input_ids is not None else "text"


def _id_in(fields: JsonObject) -> PromptId | None:
    value = fields.get("custom_id")
    if value is None:
        value = fields.get("id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RejectedRow("bad_id", f"it is a {type(value).__name__}")
    if value == "":
        raise RejectedRow("bad_id", "it is an empty string")
    if isinstance(value, str) and len(value) > MAX_ID_CHARACTERS:
        raise RejectedRow("too_large", f"the id has {len(value)} characters, more than {MAX_ID_CHARACTERS}")
    if isinstance(value, int) and not -_LARGEST_ID <= value < _LARGEST_ID:
        raise RejectedRow("bad_id", "an integer of more than 64 bits")
    return value


def _content_of(fields: JsonObject, body: bytes, model: ModelSeen) -> _Content:
    if isinstance(fields.get("body"), dict) and ("url" in fields or "custom_id" in fields):
        return _batch_content(fields, body, model)
    return _plain_content(fields, body)


def _batch_content(fields: JsonObject, body: bytes, model: ModelSeen) -> _Content:
    url, method = fields.get("url", CHAT_URL), fields.get("method", "POST")
    if url not in {CHAT_URL, COMPLETIONS_URL}:
        raise RejectedRow("unsupported_endpoint", f"{str(url)[:80]}, served are {CHAT_URL} and {COMPLETIONS_URL}")
    if method != "POST":
        raise RejectedRow("unsupported_endpoint", f"method {str(method)[:20]}, expected POST")
    inner: JsonObject = fields["body"]
    for name, value in inner.items():
        if name in _HARMLESS or name in _SERVED or value is None:
            continue
        if name not in _NEUTRAL or value != _NEUTRAL[name]:
            raise RejectedRow("unsupported_parameter", name[:80])
    model.check(inner)
    wanted = "messages" if url == CHAT_URL else "prompt"
    if inner.get(wanted) is None and not (url == COMPLETIONS_URL and inner.get("input_ids")):
        raise RejectedRow("no_prompt", f"the body has no {wanted}")
    return _plain_content(inner, bytes(raw_fields(body)["body"]))


def _plain_content(fields: JsonObject, body: bytes) -> _Content:
    sampling = sampling_in(fields)
    if fields.get("messages") is not None:
        check_messages(fields["messages"])
        raw = raw_fields(body)
        return _Content("messages", messages=raw["messages"], tools=_tools_in(fields, raw), sampling=sampling)
    for name in ("input_ids", "prompt", "text"):
        value = fields.get(name)
        if value is None:
            continue
        if name != "text" and isinstance(value, list):
            return _Content("input_ids", input_ids=_token_ids(name, value), sampling=sampling)
        if not isinstance(value, str) or name == "input_ids":
            raise RejectedRow("wrong_type", f"{name} is a {type(value).__name__}")
        if not value.strip():
            raise RejectedRow("empty_prompt", f"{name} is empty")
        return _Content("text", text=value, sampling=sampling)
    raise RejectedRow("no_prompt", f"it has {', '.join(sorted(fields))[:120] or 'no fields'}")


def _tools_in(fields: JsonObject, raw: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    tools = fields.get("tools")
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RejectedRow("wrong_type", "tools is not a list of objects")
    return raw["tools"]


def _token_ids(name: str, value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise RejectedRow("empty_prompt", f"{name} is empty")
    for place, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
            raise RejectedRow("wrong_type", f"{name}[{place}] is no token id")
    return tuple(value)
