"""Rows of OpenAI's Batch API: `custom_id`, `method`, `url`, `body`. A parameter that would change the answer must be served."""

from dataclasses import dataclass

from producer.sources.content import Content
from producer.sources.json_rows import JsonObject, raw_fields
from producer.sources.plain import plain_content
from producer.sources.rejects import RejectedRow

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


def batch_content(fields: JsonObject, body: bytes, model: ModelSeen) -> Content:
    """What a Batch row asks for.

    Raises:
        RejectedRow: It cannot be served; says why.
    """
    url, method = fields.get("url", CHAT_URL), fields.get("method", "POST")
    if not isinstance(url, str) or url not in {CHAT_URL, COMPLETIONS_URL}:
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
    return plain_content(inner, bytes(raw_fields(body)["body"]))
