"""A row of any known shape as a prompt. Recognised by its fields, row by row, so that a file may mix shapes.

Order of recognition: an OpenAI Batch row (`body` with `url`), then `messages`, `input_ids`, `prompt`, `text`. Other fields of a
plain row are columns of somebody's data set: they are passed over, and counted. In a Batch body, what would change the answer
must be served.
"""

from collections import Counter

from producer.sources.content import Content
from producer.sources.json_rows import JsonObject, decode_object
from producer.sources.lines import MAX_LINE_BYTES, Line
from producer.sources.openai_batch import ModelSeen, batch_content
from producer.sources.plain import passed_over, plain_content
from producer.sources.rejects import Reject, RejectedRow, excerpt_of
from workers.contract.schema import Prompt, PromptId

MAX_ID_CHARACTERS = 512
MAX_NAMES = 1000
"""Of fields that are passed over: rows whose fields are all named otherwise must not fill the memory."""
_LARGEST_ID = 1 << 63


def parse_row(line: Line, row: int, model: ModelSeen, ignored: Counter[str]) -> Prompt | Reject:
    """A line as a prompt, or why not.

    Args:
        line: Not blank.
        row: Its 0-based position among all rows of all sources.
        model: Shared by all rows of a run.
        ignored: Likewise; counts the fields that are passed over.
    """
    try:
        if line.too_long:
            raise RejectedRow("too_large", f"more than {MAX_LINE_BYTES >> 20} MiB")
        fields = decode_object(line.body)
        given_id = _id_in(fields)
        content = _content_of(fields, line.body, model, ignored)
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


def _content_of(fields: JsonObject, body: bytes, model: ModelSeen, ignored: Counter[str]) -> Content:
    if isinstance(fields.get("body"), dict) and ("url" in fields or "custom_id" in fields):
        return batch_content(fields, body, model)
    content = plain_content(fields, body)
    for name in passed_over(fields):
        if len(ignored) < MAX_NAMES or name in ignored:
            ignored[name] += 1
    return content
