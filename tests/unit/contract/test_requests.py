"""The request of each kind of prompt, one sampling field at a time: what is set is sent under its name, nothing else is."""

import json

import msgspec
import pytest

from workers.contract.request import request_of
from workers.contract.schema import Prompt, Sampling

MESSAGES = b'[ {"role":"user","content":"caf\\u00e9 1e2"} ]'
TOOLS = b'[ {"type":"function","function":{"name":"f","parameters":{"x":1.50}}} ]'
VALUES = {
    "max_tokens": 5,
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": -2.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop": ["\n", "多"],
    "seed": 0,
}
NATIVE = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
KINDS = {
    "messages": Prompt("a", 0, messages=msgspec.Raw(MESSAGES)),
    "messages and tools": Prompt("a", 0, messages=msgspec.Raw(MESSAGES), tools=msgspec.Raw(TOOLS)),
    "text": Prompt("a", 0, text="hi\u2028"),
    "token ids": Prompt("a", 0, input_ids=(0, 1, 2)),
}
BARE = {
    "messages": ("/v1/chat/completions", {"messages": json.loads(MESSAGES)}),
    "messages and tools": ("/v1/chat/completions", {"messages": json.loads(MESSAGES), "tools": json.loads(TOOLS)}),
    "text": ("/generate", {"text": "hi\u2028", "sampling_params": {}}),
    "token ids": ("/generate", {"input_ids": [0, 1, 2], "sampling_params": {}}),
}


def test_every_field_of_sampling_is_tried_here() -> None:
    assert set(VALUES) | {"thinking"} == set(Sampling.__struct_fields__)


@pytest.mark.parametrize("kind", KINDS)
def test_without_sampling_nothing_but_the_prompt_is_sent(kind: str) -> None:
    path, body = request_of(KINDS[kind], Sampling())
    assert (path, json.loads(body)) == BARE[kind]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_sent_under_the_name_of_its_route_even_if_it_is_zero(kind: str, name: str) -> None:
    path, expected = BARE[kind]
    sampling = msgspec.convert({name: VALUES[name]}, Sampling)
    if path == "/generate":
        expected = expected | {"sampling_params": {NATIVE.get(name, name): VALUES[name]}}
    else:
        expected = expected | {name: VALUES[name]}
    assert json.loads(request_of(KINDS[kind], sampling)[1]) == expected


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_thinking_and_model_are_told_to_the_chat_route_only(kind: str, thinking: bool) -> None:
    path, expected = BARE[kind]
    if path != "/generate":
        expected = expected | {"chat_template_kwargs": {"enable_thinking": thinking}, "model": "m"}
    assert json.loads(request_of(KINDS[kind], Sampling(thinking=thinking), "m")[1]) == expected


def test_messages_and_tools_are_sent_byte_for_byte() -> None:
    _, body = request_of(KINDS["messages and tools"], Sampling())
    assert MESSAGES in body
    assert TOOLS in body
