"""Output lines of OpenAI's Batch API: `custom_id` with a response, or with an error.

A prompt with messages becomes a `chat.completion`, a text or token prompt a `text_completion`.
Source: platform.openai.com/docs/guides/batch, "Retrieve the results".
"""

from producer.collect.native import NO_ANSWER
from producer.collect.rows import ENCODER, Place
from producer.shards import prompt_name
from workers.contract.schema import Completion, Prompt, Usage


def openai_batch_row(place: Place, prompt: Prompt, completion: Completion, *, with_input: bool) -> bytes:
    """One line; with `with_input` an `input` beside OpenAI's own keys holds messages, text or input_ids."""
    line: dict[str, object] = {
        "id": f"batch_req_{place.manifest.run}-{place.batch}-{completion.index}",
        "custom_id": prompt_name(prompt, place.manifest.samples),
    }
    if completion.status == "ok":
        response = {
            "status_code": 200,
            "request_id": completion.provenance.request_id,
            "body": _body(place, prompt, completion),
        }
        line |= {"response": response, "error": None}
    else:
        message = completion.message or f"the prompt failed: {completion.reason}"
        line |= {"response": None, "error": {"code": completion.reason, "message": message}}
    if with_input:
        names = ("messages", "text", "input_ids", "tools")
        line["input"] = {name: value for name in names if (value := getattr(prompt, name)) is not None}
    return ENCODER.encode(line)


def _body(place: Place, prompt: Prompt, completion: Completion) -> dict[str, object]:
    origin = completion.provenance
    chat = prompt.messages is not None
    ended_at = (origin.started_at or place.manifest.created_at) + (origin.latency_s or 0.0)
    kind = "chatcmpl" if chat else "cmpl"
    return {
        "id": f"{kind}-{origin.request_id or f'{place.batch}-{completion.index}'}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(ended_at),
        "model": origin.model or place.manifest.model or "",
        "choices": [_chat_choice(completion) if chat else _text_choice(completion)],
        "usage": _usage(completion.usage),
    }


def _chat_choice(completion: Completion) -> dict[str, object]:
    answer = completion.answer or NO_ANSWER
    message: dict[str, object] = {"role": "assistant", "content": answer.content or "", "refusal": None}
    if answer.reasoning_content is not None:
        message["reasoning_content"] = answer.reasoning_content
    if answer.tool_calls is not None:
        message["tool_calls"] = answer.tool_calls
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish_reason}


def _text_choice(completion: Completion) -> dict[str, object]:
    answer = completion.answer or NO_ANSWER
    choice: dict[str, object] = {"index": 0, "text": answer.content or "", "logprobs": None}
    if answer.reasoning_content is not None:
        choice["reasoning_content"] = answer.reasoning_content
    return {**choice, "finish_reason": completion.finish_reason}


def _usage(usage: Usage) -> dict[str, object]:
    told: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    if usage.cached_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return told
