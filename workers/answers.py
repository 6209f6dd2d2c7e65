"""What SGLang answers, read: one shape for both routes and both versions. Pure.

Knows the JSON of answers and errors; recorded ones of both versions are kept in tests/golden/sglang. Judges nothing
(workers/quality.py) and sends nothing (workers/engine.py).
"""

from typing import Annotated, Any

import msgspec

from workers.contract.schema import Answer, Usage

MAX_MESSAGE = 500
"""Characters of an engine's error message that are kept with a row."""


class Generated(msgspec.Struct, frozen=True):
    """One answer of the engine, as it came. `finish` is stop, length, abort, tool_calls, …"""

    answer: Answer
    finish: str | None
    matched: str | int | None
    usage: Usage
    message: str | None = None
    spec_verify_ct: int | None = None
    retractions: int | None = None


Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""Tokens: a count beyond this range is a broken answer, and would break the counters."""


class InvalidAnswer(Exception):
    """HTTP 200 with something that is not an answer; the text says what."""


class _FinishReason(msgspec.Struct):
    type: str
    matched: object = None
    message: str | None = None


class _MetaInfo(msgspec.Struct):
    finish_reason: _FinishReason
    completion_tokens: Count
    prompt_tokens: Count = 0  # left out when a request is aborted in the queue
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    spec_verify_ct: int | None = None
    num_retractions: int | None = None
    total_retractions: int | None = None  # 0.5.11's name


class _GenerateReply(msgspec.Struct):
    text: str
    meta_info: _MetaInfo
    output_ids: tuple[int, ...] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None
    matched_stop: object = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: Count | None = None


class _ChatUsage(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count
    reasoning_tokens: Count | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _ChatReply(msgspec.Struct):
    choices: list[_Choice]
    usage: _ChatUsage


_GENERATE = msgspec.json.Decoder(_GenerateReply)
_CHAT = msgspec.json.Decoder(_ChatReply)


def read_answer(path: str, body: bytes) -> Generated:
    """The answer in a reply with status 200.

    Raises:
        InvalidAnswer: An error body, half an answer, or something else; says what.
    """
    try:
        return _from_chat(_CHAT.decode(body)) if path.startswith("/v1/chat") else _from_generate(_GENERATE.decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidAnswer(f"{error}: {error_message(body)}") from error


def _from_generate(reply: _GenerateReply) -> Generated:
    meta = reply.meta_info
    return Generated(
        answer=Answer(content=reply.text, output_ids=reply.output_ids),
        finish=meta.finish_reason.type,
        matched=_matched(meta.finish_reason.matched),
        message=meta.finish_reason.message,
        usage=Usage(meta.prompt_tokens, meta.completion_tokens, meta.reasoning_tokens, meta.cached_tokens),
        spec_verify_ct=meta.spec_verify_ct,
        retractions=meta.num_retractions if meta.num_retractions is not None else meta.total_retractions,
    )


def _from_chat(reply: _ChatReply) -> Generated:
    if not reply.choices:
        raise InvalidAnswer("no choices")
    choice, usage = reply.choices[0], reply.usage
    message = choice.message
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    return Generated(
        answer=Answer(message.content, message.reasoning_content, tool_calls=message.tool_calls or None),
        finish=choice.finish_reason,
        matched=_matched(choice.matched_stop),
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens, cached),
    )


def _matched(value: object) -> str | int | None:
    return value if value is None or isinstance(value, str | int) else str(value)


def error_message(body: bytes) -> str:
    """The sentence in an error body, whichever of SGLang's shapes it has; never longer than `MAX_MESSAGE`."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return body[:MAX_MESSAGE].decode(errors="replace").strip()
    if isinstance(found, dict):
        inner = found.get("error", found)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str):
            return message[:MAX_MESSAGE]
    return body[:MAX_MESSAGE].decode(errors="replace")
