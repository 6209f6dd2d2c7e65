"""Plain rows: `messages`, `input_ids`, `prompt` or `text`, with sampling values beside them; other fields are passed over.

Which those are is told to the user: a misspelt `temprature` must not vanish without a word.
"""

from typing import Any

import msgspec

from producer.sources.content import Content
from producer.sources.json_rows import JsonObject, raw_fields
from producer.sources.messages import check_messages
from producer.sources.rejects import RejectedRow
from producer.sources.sampling import SAMPLING_FIELDS, sampling_in

PROMPT_FIELDS = ("messages", "input_ids", "prompt", "text")
READ_FIELDS = SAMPLING_FIELDS | {"id", "custom_id", "tools"}


def plain_content(fields: JsonObject, body: bytes) -> Content:
    """What a plain row, or the body of a Batch row, asks for.

    Raises:
        RejectedRow: It cannot be accepted; says why.
    """
    sampling = sampling_in(fields)
    if fields.get("messages") is not None:
        check_messages(fields["messages"])
        raw = raw_fields(body)
        return Content("messages", messages=raw["messages"], tools=_tools_in(fields, raw), sampling=sampling)
    for name in ("input_ids", "prompt", "text"):
        value = fields.get(name)
        if value is None:
            continue
        if name != "text" and isinstance(value, list):
            return Content("input_ids", input_ids=_token_ids(name, value), sampling=sampling)
        if not isinstance(value, str) or name == "input_ids":
            raise RejectedRow("wrong_type", f"{name} is a {type(value).__name__}")
        if not value.strip():
            raise RejectedRow("empty_prompt", f"{name} is empty")
        return Content("text", text=value, sampling=sampling)
    raise RejectedRow("no_prompt", f"it has {', '.join(sorted(fields))[:120] or 'no fields'}")


def passed_over(fields: JsonObject) -> list[str]:
    """Names of the fields of an accepted plain row that change nothing."""
    others = fields.keys() - READ_FIELDS
    others.discard(next(name for name in PROMPT_FIELDS if fields.get(name) is not None))
    if "tools" in fields and not fields.get("messages"):
        others.add("tools")
    return [name for name in others if fields[name] is not None]


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
