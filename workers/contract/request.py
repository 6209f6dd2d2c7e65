"""The request that one prompt becomes: path and JSON body. Pure; `--dry-run`, preflight and the workers' client share it.

A closed set of keys, because 0.5.23 refuses unknown sampling parameters with 400 and 0.5.11 answers them with 500.
"""

import msgspec

from workers.contract.schema import Prompt, Sampling

CHAT = "/v1/chat/completions"
GENERATE = "/generate"

_NATIVE_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
_ENCODER = msgspec.json.Encoder()


def request_of(prompt: Prompt, sampling: Sampling, model: str | None = None) -> tuple[str, bytes]:
    """Path and body, without a request id.

    Args:
        prompt: Messages go to the chat route, text and token ids to `/generate`.
        sampling: The run's, overridden by the row's. `max_tokens` is set: the routes' own defaults are 128 and "no limit".
        model: Named in a chat request, for the log of the server; SGLang serves its one model whatever the name.
    """
    values = {name: value for name in sampling.__struct_fields__ if (value := getattr(sampling, name)) is not None}
    thinking = values.pop("thinking", None)
    if prompt.messages is not None:
        body: dict[str, object] = {"messages": prompt.messages, **values}
        if model is not None:
            body["model"] = model
        if prompt.tools is not None:
            body["tools"] = prompt.tools
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        return CHAT, _ENCODER.encode(body)
    native = {_NATIVE_NAMES.get(name, name): value for name, value in values.items()}
    source = {"text": prompt.text} if prompt.input_ids is None else {"input_ids": prompt.input_ids}
    return GENERATE, _ENCODER.encode({**source, "sampling_params": native})
