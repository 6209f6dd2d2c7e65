"""Our own output rows: every key always there, null where nothing is known."""

import msgspec

from producer.collect.rows import ENCODER, Place
from workers.contract.schema import Answer, Completion, Prompt

NO_ANSWER = Answer()
_PROMPT_FIELDS = ("messages", "text", "input_ids", "tools", "sampling")


def native_row(place: Place, prompt: Prompt, completion: Completion, *, with_input: bool) -> bytes:
    """One row.

    `sample` is there when rows were generated several times, `tool_calls` when the answer calls tools, `rejected` when text was
    judged bad, `input` when asked for.
    """
    answer = completion.answer or NO_ANSWER
    row: dict[str, object] = {"id": prompt.id, "row": prompt.row}
    if place.manifest.samples > 1:
        row["sample"] = prompt.sample
    row |= {
        "status": completion.status,
        "reason": completion.reason,
        "message": completion.message,
        "content": answer.content,
        "reasoning_content": answer.reasoning_content,
        "output_ids": answer.output_ids,
        "finish_reason": completion.finish_reason,
        "usage": msgspec.structs.asdict(completion.usage),
        "flags": completion.flags,
        "provenance": {**msgspec.structs.asdict(completion.provenance), "batch": place.batch, "run": place.manifest.run},
    }
    if answer.tool_calls is not None:
        row["tool_calls"] = answer.tool_calls
    if completion.rejected is not None:
        row["rejected"] = msgspec.structs.asdict(completion.rejected)
    if with_input:
        row["input"] = {name: value for name in _PROMPT_FIELDS if (value := getattr(prompt, name)) is not None}
    return ENCODER.encode(row)
