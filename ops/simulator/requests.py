"""From a request's body to what the engine is asked, with the refusals of each version. Pure."""

import uuid
from typing import Any

from ops.simulator.engine import Ask
from ops.simulator.lengths import prompt_tokens
from ops.simulator.wire import OLD, native_error, openai_error, sampling_fields

Json = dict[str, Any]
NO_LIMIT = 1 << 30
DEFAULT_NATIVE_TOKENS = 128
DEFAULT_COMPLETION_TOKENS = 16


class Refused(Exception):
    """The server answers with an error; `body` as JSON, or as plain text."""

    def __init__(self, status: int, body: Json | str) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


def native_ask(body: Json, version: str, context_length: int) -> Ask:
    """What `/generate` was asked.

    Raises:
        Refused: As the real server of this version would.
    """
    sampling = body.get("sampling_params") or {}
    unknown = [name for name in sampling if name not in sampling_fields(version)]
    if unknown and version == OLD:
        raise Refused(500, "Internal Server Error")
    if unknown:
        expected = ", ".join(f"`{name}`" for name in sampling_fields(version))
        raise Refused(400, {"error": f"unknown field `{unknown[0]}`, expected one of {expected}"})
    if all(body.get(name) is None for name in ("text", "input_ids", "input_embeds")):
        raise Refused(400, native_error("Either text, input_ids or input_embeds should be provided."))
    if body.get("input_ids") == []:
        raise Refused(400, native_error("input_ids cannot be empty."))
    problem = sampling_problem(sampling, "max_new_tokens", version)
    budget = sampling.get("max_new_tokens", DEFAULT_NATIVE_TOKENS)
    problem = problem or length_problem(prompt_tokens(body), budget, context_length)
    if problem:
        raise Refused(400, native_error(problem))
    budget = NO_LIMIT if budget is None else max(1, budget)  # the prefill yields a token, wanted or not
    return Ask(_rid(body), body, budget, route="native", thinking=False)


def openai_ask(body: Json, version: str, context_length: int, *, chat: bool) -> Ask:
    """What an OpenAI route was asked.

    Raises:
        Refused: As the real server would.
    """
    wanted = "messages" if chat else "prompt"
    if wanted not in body:
        text = f"1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{wanted}'), 'msg': 'Field required'}}"
        raise Refused(400, openai_error(text, kind="Bad Request"))
    if chat and not body["messages"]:
        raise Refused(400, openai_error("Messages cannot be empty."))
    for name in ("temperature", "top_p"):
        if isinstance(body.get(name), str):
            text = f"1 validation error:\n  {{'type': 'float_parsing', 'loc': ('body', '{name}')}}"
            raise Refused(400, openai_error(text, kind="Bad Request"))
    budget = body.get("max_tokens", body.get("max_completion_tokens"))
    if budget is None:
        budget = NO_LIMIT if chat else DEFAULT_COMPLETION_TOKENS
    floats = {name: float(body[name]) for name in ("temperature", "top_p") if body.get(name) is not None}
    problem = sampling_problem({**floats, "max_new_tokens": budget}, "max_new_tokens", version)
    length = 0 if budget == NO_LIMIT else budget
    problem = problem or length_problem(prompt_tokens(body), length, context_length)
    if problem:
        raise Refused(400, openai_error(problem))
    template = body.get("chat_template_kwargs") or {}
    thinking = template.get("enable_thinking") is not False
    return Ask(_rid(body), body, max(1, budget), route="chat" if chat else "completion", thinking=thinking)


def _rid(body: Json) -> str:
    return str(body.get("rid") or uuid.uuid4().hex)


def sampling_problem(sampling: Json, budget_name: str, version: str) -> str | None:
    """SGLang's own sentence for a value out of range."""
    temperature, top_p, budget = sampling.get("temperature"), sampling.get("top_p"), sampling.get(budget_name)
    if temperature is not None and temperature < 0:
        wanted = "non-negative" if version == OLD else "a non-negative finite number"
        return f"temperature must be {wanted}, got {temperature}."
    if top_p is not None and not 0 < top_p <= 1:
        return f"top_p must be in (0, 1], got {top_p}."
    if budget is not None and budget < 0:
        return f"max_new_tokens must be at least 0, got {budget}."
    return None


def length_problem(prompt: int, budget: int | None, context_length: int) -> str | None:
    """SGLang's own sentence for a request that does not fit."""
    if prompt >= context_length:
        return f"The input ({prompt} tokens) is longer than the model's context length ({context_length} tokens)."
    total = prompt + (budget or 0)
    if total > context_length:
        return (
            f"Requested token count exceeds the model's maximum context length of {context_length} tokens. "
            f"You requested a total of {total} tokens: {prompt} tokens from the input messages and {budget or 0} tokens "
            "for the completion. Please reduce the number of tokens in the input messages or the completion to fit within "
            "the limit."
        )
    return None
