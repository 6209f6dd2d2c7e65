"""The shapes of SGLang's answers by version. Pure; source: recordings of the real servers, tests/golden/sglang."""

import time
from typing import Any

import msgspec

OLD = "0.5.11"
VERSIONS = (OLD, "0.5.23")

SAMPLING_FIELDS = (
    "max_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "n",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "stream_interval",
    "logit_bias",
    "sampling_seed",
    "custom_params",
)
ABORTED_IN_QUEUE = {"type": "abort", "message": "Abort in waiting queue"}
"""finish_reason of a request that was aborted before it ran; of such a one even the prompt's length is not told."""
_ONLY_AT_THE_END = frozenset(
    {
        "weight_versions",
        "e2e_latency",
        "request_received_ts",
        "api_server_dispatch_finish_ts",
        "request_finished_ts",
        "decode_throughput",
        "inference_time",
        "first_token_latency",
        "response_sent_to_client_ts",
    }
)
NEWER_SAMPLING_FIELDS = ("beam_width", "watermark", "choice")

Json = dict[str, Any]


class Finished(msgspec.Struct, frozen=True):
    """One answer before it has a shape. `reason` is SGLang's finish_reason object."""

    rid: str
    text: str
    reasoning: str | None
    output_ids: list[int]
    prompt_tokens: int
    reasoning_tokens: int
    reason: Json
    started_at: float
    finished_at: float


def sampling_fields(version: str) -> tuple[str, ...]:
    """Names that `sampling_params` may have."""
    return SAMPLING_FIELDS if version == OLD else SAMPLING_FIELDS + NEWER_SAMPLING_FIELDS


def native(done: Finished, version: str) -> Json:
    """Answer of `/generate`."""
    count = len(done.output_ids)
    if done.reason == ABORTED_IN_QUEUE:
        return _native_of_queued(done, version)
    meta: Json = {
        "id": done.rid,
        "finish_reason": done.reason,
        "prompt_tokens": done.prompt_tokens,
        "weight_version": "default",
    }
    latency_s = done.finished_at - done.started_at
    if version == OLD:
        meta |= {"total_retractions": 0, "queue_time": 0.0, "prefill_waiting_latency": None, "prefill_launch_latency": None}
    else:
        meta |= {"num_retractions": 0, "storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0}
        meta |= {"forward_entry_time": done.started_at, "prefill_finished_time": done.started_at, "queue_time": 0.0}
    meta |= {"reasoning_tokens": done.reasoning_tokens, "completion_tokens": count, "cached_tokens": 0}
    if version != OLD:
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": count}]
    meta |= {"cached_tokens_details": None, "dp_rank": None, "e2e_latency": latency_s}
    meta |= {"request_received_ts": done.started_at, "api_server_dispatch_finish_ts": done.started_at}
    meta |= {"request_finished_ts": done.finished_at, "decode_throughput": count / max(latency_s, 1e-6)}
    if version == OLD:
        meta["inference_time"] = latency_s
    else:
        meta["first_token_latency"] = 0.0
    meta["response_sent_to_client_ts"] = done.finished_at
    return {"text": done.text, "output_ids": done.output_ids, "meta_info": meta}


def _native_of_queued(done: Finished, version: str) -> Json:
    meta: Json = {"id": done.rid, "finish_reason": done.reason, "weight_version": "default"}
    meta |= {"e2e_latency": done.finished_at - done.started_at, "completion_tokens": 0}
    if version != OLD:
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": 0}]
    return {"text": "", "output_ids": [], "meta_info": meta | {"response_sent_to_client_ts": done.finished_at}}


def native_chunk(done: Finished, version: str) -> Json:
    """One event of a streamed `/generate` before the last: all that was decoded so far."""
    whole = native(done, version)
    meta = {name: value for name, value in whole["meta_info"].items() if name not in _ONLY_AT_THE_END}
    return whole | {"meta_info": meta | {"finish_reason": None}}


def usage(done: Finished, version: str) -> Json:
    """Token counts of the OpenAI routes."""
    count = len(done.output_ids)
    told: Json = {
        "prompt_tokens": done.prompt_tokens,
        "total_tokens": done.prompt_tokens + count,
        "completion_tokens": count,
        "prompt_tokens_details": None,
        "reasoning_tokens": done.reasoning_tokens,
    }
    if version != OLD:
        told["completion_tokens_details"] = {"reasoning_tokens": done.reasoning_tokens} if done.reasoning_tokens else None
    return told


def _flat(done: Finished) -> Json:
    return {"logprobs": None, "finish_reason": done.reason["type"], "matched_stop": done.reason.get("matched")}


def _openai(done: Finished, version: str, model: str, kind: str, choice: Json) -> Json:
    metadata: Json = {"weight_version": "default"}
    if version != OLD:
        metadata["weight_versions"] = [{"version": "default", "start": 0, "end": len(done.output_ids)}]
    return {
        "id": done.rid,
        "object": kind,
        "created": int(done.finished_at),
        "model": model,
        "choices": [choice],
        "usage": usage(done, version),
        "metadata": metadata,
    }


def chat(done: Finished, version: str, model: str) -> Json:
    """Answer of `/v1/chat/completions`: content null (0.5.11) or empty when the budget ended while thinking."""
    content: str | None = done.text.strip()
    if not content:
        content = None if version == OLD else ""
    message: Json = {"role": "assistant", "content": content, "reasoning_content": done.reasoning}
    if version == OLD:
        message["tool_calls"] = None
    return _openai(done, version, model, "chat.completion", {"index": 0, "message": message, **_flat(done)})


def completion(done: Finished, version: str, model: str) -> Json:
    """Answer of `/v1/completions`."""
    return _openai(done, version, model, "text_completion", {"index": 0, "text": done.text, **_flat(done)})


def chat_chunk(rid: str, model: str, delta: Json, finish: Json | None) -> Json:
    """One event of a streamed chat."""
    end = finish or {"type": None}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end["type"], "matched_stop": end.get("matched")}
    return {"id": rid, "object": "chat.completion.chunk", "created": int(time.time()), "model": model, "choices": [choice]}


def completion_chunk(rid: str, model: str, text: str, finish: Json | None) -> Json:
    """One event of a streamed completion."""
    end = finish or {"type": None}
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": end["type"], "matched_stop": end.get("matched")}
    told: Json = {"id": rid, "object": "text_completion", "created": int(time.time()), "model": model}
    return told | {"choices": [choice], "usage": None}


def native_error_event(message: str, version: str) -> Json:
    """What a streamed `/generate` sends instead of status 400."""
    more = {} if version == OLD else {"type": "invalid_request_error", "code": 400, "retryable": False}
    return {"error": {"message": message, **more}}


def unsupported_media_type() -> Json:
    """400 of the OpenAI routes for anything that is not sent as JSON."""
    problem = "{'loc': ['header', 'content-type'], 'msg': \"Unsupported Media Type: Only 'application/json' is allowed\", "
    problem += "'type': 'value_error'}"
    return openai_error(f"1 validation error:\n  {problem} [{problem}]", kind="Bad Request")


def native_error(message: str) -> Json:
    """400 of `/generate`."""
    return {"error": {"message": message}}


def openai_error(message: str, code: int = 400, kind: str = "BadRequestError") -> Json:
    """Errors of the OpenAI routes, and of both when the scheduler refuses."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def aborted(message: str) -> Json:
    """finish_reason of a running request that was killed."""
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}
