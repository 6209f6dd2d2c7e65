"""Rows of every shape become prompts; everything that can be wrong with a row is a reject with its reason and detail."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from producer.sources.lines import Line
from producer.sources.openai_batch import _NEUTRAL, ModelSeen
from producer.sources.rejects import REJECT_REASONS, Reject
from producer.sources.rows import MAX_NAMES, parse_row
from workers.contract.schema import Prompt, Sampling, decode_prompts, encode_shard

CHAT = [{"role": "user", "content": "hi"}]


def parsed(row: object, model: ModelSeen | None = None) -> Prompt | Reject:
    body = row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()
    return parse_row(Line("f.jsonl", 7, body), 3, model or ModelSeen(), Counter())


def accepted(row: object) -> Prompt:
    found = parsed(row)
    assert isinstance(found, Prompt), found
    return found


def nested(depth: int) -> bytes:
    return b'{"messages": [{"role": "user", "content": "x", "more": ' + b"[" * depth + b"]" * depth + b"}]}"


def batch(body: dict[str, Any], **more: object) -> dict[str, object]:
    return {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": body, **more}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "a", "messages": CHAT}, Prompt("a", 3, messages=msgspec.Raw(b'[{"role": "user", "content": "hi"}]'))),
        ({"id": 5, "prompt": "hi"}, Prompt(5, 3, text="hi")),
        ({"id": "5", "text": " hi\n"}, Prompt("5", 3, text=" hi\n")),
        ({"id": "a", "input_ids": [1, 0, 7]}, Prompt("a", 3, input_ids=(1, 0, 7))),
        ({"id": "a", "prompt": [1, 2]}, Prompt("a", 3, input_ids=(1, 2))),
        ({"custom_id": "x", "id": "y", "text": "t"}, Prompt("x", 3, text="t")),
        (batch({"messages": CHAT}), Prompt("c", 3, messages=msgspec.Raw(b'[{"role": "user", "content": "hi"}]'))),
        (batch({"prompt": "t"}, url="/v1/completions"), Prompt("c", 3, text="t")),
        (
            {"id": "a", "text": "t", "max_tokens": 5, "temperature": 0, "stop": "x", "top_k": -1},
            Prompt("a", 3, text="t", sampling=Sampling(max_tokens=5, temperature=0.0, stop=("x",), top_k=-1)),
        ),
        (
            batch({"messages": CHAT, "max_completion_tokens": 9, "n": 1, "stream": False, "user": "u", "metadata": {"k": "v"}}),
            Prompt("c", 3, messages=msgspec.Raw(b'[{"role": "user", "content": "hi"}]'), sampling=Sampling(max_tokens=9)),
        ),
        (
            {"id": "a", "messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}},
            Prompt("a", 3, messages=msgspec.Raw(b'[{"role": "user", "content": "hi"}]'), sampling=Sampling(thinking=False)),
        ),
        ({"id": "a", "text": "t", "score": 0.3, "source": "web", "model": "gpt"}, Prompt("a", 3, text="t")),
    ],
)
def test_a_row_of_each_shape_is_accepted_as_it_stands(row: object, expected: Prompt) -> None:
    assert accepted(row) == expected


def test_messages_and_tools_are_kept_byte_for_byte() -> None:
    body = (
        b'{"tools": [ {"type":"function" , "function":{"name":"f"}} ],'
        b'"messages":[ {"role" :"user","content":"\xe5\xa4\x9a\\u00e9"} ]}'
    )
    found = accepted(body)
    assert found.messages is not None
    assert found.tools is not None
    assert bytes(found.messages) == b'[ {"role" :"user","content":"\xe5\xa4\x9a\\u00e9"} ]'
    assert bytes(found.tools) == b'[ {"type":"function" , "function":{"name":"f"}} ]'


def test_a_conversation_with_tool_calls_and_results_is_accepted() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [*CHAT, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "42"}]
    assert accepted({"id": "a", "messages": talk}).messages is not None


def test_the_last_of_equal_keys_counts_as_in_every_json_reader() -> None:
    assert accepted(b'{"id": 1, "text": "a", "text": "b", "id": 2}') == Prompt(2, 3, text="b")
    found = accepted(b'{"id": 1, "messages": [], "messages": [{"role": "user", "content": "x", "content": "y"}]}')
    assert bytes(found.messages or b"") == b'[{"role": "user", "content": "x", "content": "y"}]'


def deeper(frames: int, prompt: Prompt) -> list[Prompt]:
    return deeper(frames - 1, prompt) if frames else decode_prompts("k", encode_shard([prompt]))


def test_a_row_nested_as_deep_as_is_accepted_can_be_read_from_a_full_stack() -> None:
    assert len(deeper(500, accepted(nested(190)))) == 1


@pytest.mark.parametrize("name", sorted(_NEUTRAL))
def test_a_parameter_that_is_not_served_is_accepted_only_where_it_changes_nothing(name: str) -> None:
    assert accepted(batch({"messages": CHAT, name: _NEUTRAL[name]})) == accepted(batch({"messages": CHAT}))
    assert accepted(batch({"messages": CHAT, name: None})) == accepted(batch({"messages": CHAT}))
    found = parsed(batch({"messages": CHAT, name: "other"}))
    assert isinstance(found, Reject)
    assert (found.reason, found.detail) == ("unsupported_parameter", name)


def test_an_id_is_made_from_content_and_row() -> None:
    first, again = accepted({"text": "t"}), accepted({"text": "t"})
    other = accepted({"text": "u"})
    assert first.id == again.id != other.id
    assert str(first.id).startswith("row-3-")


REJECTED = [
    (b"{nonsense", "broken_json", "JSON is malformed"),
    (b'{"text": NaN}', "broken_json", "a number that JSON does not have"),
    (b'{"text": "t", "x": 1e999}', "broken_json", "a number that JSON does not have"),
    (b"\xef\xbb\xbf" + b'{"text": "t"}', "broken_json", "JSON is malformed: invalid character (byte 0)"),
    (b"[" * 20_000 + b"]" * 20_000, "broken_json", "nested too deep, more than 200 levels"),
    (nested(200), "broken_json", "nested too deep, more than 200 levels"),
    (nested(950), "broken_json", "nested too deep, more than 200 levels"),
    (b'{"id": ' + b"9" * 5000 + b', "text": "t"}', "broken_json", "Integer value out of range"),
    (b'{"text": "\xff"}', "invalid_utf8", "at byte 10"),
    (b'{"text": "\xed\xa0\x80"}', "lone_surrogate", "at byte 10"),
    (b'{"text": "a \\ud800 b"}', "lone_surrogate", "without its other half"),
    (b'{"messages": [{"role": "user", "content": "\\udfff"}]}', "lone_surrogate", "without its other half"),
    (b'{"\\udc00": 1, "text": "t"}', "lone_surrogate", "without its other half"),
    (b'{"text": "t", "\\u0000": 1}', "nul", "as \\u0000"),
    (b'{"id": "a\\u0000", "text": "t"}', "nul", "as \\u0000"),
    (b'{"id": "\\ud800", "text": "t"}', "lone_surrogate", "without its other half"),
    (b'{"text": "a\\u0000b"}', "nul", "as \\u0000"),
    (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\u0000"}]}]}', "nul", "as \\u0000"),
    (b'{"text": "a\0b"}', "nul", "at byte"),
    ({"id": "x" * 513, "text": "t"}, "too_large", "the id has 513 characters"),
    ([1], "not_an_object", "it is a list"),
    ("text", "not_an_object", "it is a str"),
    ({}, "no_prompt", "it has no fields"),
    ({"question": "q"}, "no_prompt", "it has question"),
    (batch({"max_tokens": 5}), "no_prompt", "the body has no messages"),
    ({"text": 5}, "wrong_type", "text is a int"),
    ({"messages": "hi"}, "wrong_type", "messages is a str"),
    ({"input_ids": "1 2"}, "wrong_type", "input_ids is a str"),
    ({"input_ids": [1, -2]}, "wrong_type", "input_ids[1] is no token id"),
    ({"input_ids": [True]}, "wrong_type", "input_ids[0] is no token id"),
    ({"text": "t", "temperature": "hot"}, "wrong_type", "temperature: expected a number, found text"),
    ({"text": "t", "max_tokens": True}, "wrong_type", "max_tokens is True"),
    ({"messages": CHAT, "tools": "f"}, "wrong_type", "tools is not a list"),
    (batch({"messages": CHAT, "model": 5}), "wrong_type", "model is a int"),
    ({"text": " \n"}, "empty_prompt", "text is empty"),
    ({"messages": []}, "empty_prompt", "messages is empty"),
    ({"messages": [{"role": "user", "content": " "}]}, "empty_prompt", "no message has any content"),
    ({"input_ids": []}, "empty_prompt", "input_ids is empty"),
    ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "bad_message", "message 0 has a part that is no text"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, "bad_message", "message 0 has a part that is no text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "bad_message", "a part that is no text"),
    ({"messages": [{"role": ["user"], "content": "hi"}]}, "bad_message", "message 0 has no role"),
    ({"messages": ["hi"]}, "bad_message", "message 0 is a str"),
    ({"messages": [{"content": "hi"}]}, "bad_message", "message 0 has no role"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "bad_message", "message 0 has the role 'wizard', expected user,"),
    ({"messages": [{"role": "user"}]}, "bad_message", "message 0 (user) has no content"),
    ({"messages": [{"role": "user", "content": 5}]}, "bad_message", "content of type int"),
    ({"messages": [*CHAT, {"role": "assistant", "content": "a"}]}, "bad_message", "nothing to answer"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_part", "type image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "unsupported_part", "type input_audio"),
    (batch({"input": "x"}, url="/v1/embeddings"), "unsupported_endpoint", "/v1/embeddings"),
    (batch({"messages": CHAT}, url=[]), "unsupported_endpoint", "[], served are /v1/chat/completions and /v1/completions"),
    (batch({"messages": CHAT}, url={}), "unsupported_endpoint", "{}, served are"),
    (batch({"messages": CHAT}, method=["POST"]), "unsupported_endpoint", "method ['POST'], expected POST"),
    (batch({"messages": CHAT}, method="GET"), "unsupported_endpoint", "method GET"),
    (batch({"messages": CHAT, "n": 2}), "unsupported_parameter", "n"),
    (batch({"messages": CHAT, "logprobs": True}), "unsupported_parameter", "logprobs"),
    (batch({"messages": CHAT, "response_format": {"type": "json_object"}}), "unsupported_parameter", "response_format"),
    ({"messages": CHAT, "chat_template_kwargs": {"thinking": True}}, "unsupported_parameter", "chat_template_kwargs.thinking"),
    (
        batch({"messages": CHAT, "chat_template_kwargs": {"enable_thinking": True, "x": 1}}),
        "unsupported_parameter",
        "chat_template_kwargs.x",
    ),
    ({"messages": CHAT, "chat_template_kwargs": "x"}, "wrong_type", "chat_template_kwargs is a str, expected an object"),
    (
        {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": "no"}},
        "wrong_type",
        "thinking: expected true or false, found text",
    ),
    ({"text": "t", "temperature": -1}, "bad_sampling", "temperature is -1.0, expected 0 or more, and finite"),
    ({"text": "t", "seed": 1 << 63}, "bad_sampling", "seed is 9223372036854775808, expected an integer of 64 bits"),
    ({"text": "t", "max_tokens": 1 << 31}, "bad_sampling", "max_tokens is 2147483648, expected at least 1, below 2^31"),
    ({"text": "t", "top_k": 0}, "bad_sampling", "top_k is 0, expected -1, or at least 1"),
    ({"text": "t", "min_p": 1.5}, "bad_sampling", "min_p is 1.5, expected 0 to 1"),
    ({"text": "t", "presence_penalty": 3}, "bad_sampling", "presence_penalty is 3.0, expected -2 to 2"),
    ({"text": "t", "frequency_penalty": -3}, "bad_sampling", "frequency_penalty is -3.0, expected -2 to 2"),
    ({"text": "t", "repetition_penalty": 0}, "bad_sampling", "repetition_penalty is 0.0, expected above 0 and at most 2"),
    ({"text": "t", "stop": [str(number) for number in range(65)]}, "bad_sampling", "expected at most 64 strings"),
    ({"text": "t", "top_p": 0}, "bad_sampling", "top_p is 0.0, expected above 0"),
    ({"text": "t", "max_tokens": 0}, "bad_sampling", "max_tokens is 0, expected at least 1"),
    ({"text": "t", "stop": ["a", ""]}, "bad_sampling", "none empty"),
    ({"id": 1.5, "text": "t"}, "bad_id", "it is a float"),
    ({"id": True, "text": "t"}, "bad_id", "it is a bool"),
    ({"id": "", "text": "t"}, "bad_id", "it is an empty string"),
    ({"id": 1 << 70, "text": "t"}, "bad_id", "more than 64 bits"),
]


@pytest.mark.parametrize(("row", "reason", "detail"), REJECTED)
def test_a_row_that_cannot_be_accepted_says_why(row: object, reason: str, detail: str) -> None:
    found = parsed(row)
    assert isinstance(found, Reject), found
    assert found.reason == reason
    assert detail in found.detail
    assert (found.source, found.line) == ("f.jsonl", 7)


def test_another_model_than_the_first_is_rejected() -> None:
    seen = ModelSeen()
    assert isinstance(parsed(batch({"messages": CHAT, "model": "a"}), seen), Prompt)
    found = parsed(batch({"messages": CHAT, "model": "b"}), seen)
    assert isinstance(found, Reject)
    assert (found.reason, found.detail) == ("other_model", "b, the first row names a")


def test_a_line_that_is_too_long_is_rejected_without_its_body() -> None:
    found = parse_row(Line("f", 1, b"", too_long=True), 0, ModelSeen(), Counter())
    assert isinstance(found, Reject)
    assert (found.reason, found.detail) == ("too_large", "more than 16 MiB")


def test_every_reason_of_the_closed_list_is_provoked_somewhere() -> None:
    provoked = {reason for _, reason, _ in REJECTED} | {"other_model", "duplicate_id"}  # above, and in test_stream
    assert provoked == set(REJECT_REASONS)


def test_an_excerpt_shows_no_control_characters() -> None:
    found = parsed(b'{"a": "\x1b[31m \xe2\x80\xae"')
    assert isinstance(found, Reject)
    assert found.excerpt.isprintable()
    assert len(parsed(b"x" * 10_000).excerpt) <= 160  # type: ignore[union-attr]


def test_fields_that_change_nothing_are_counted_by_name() -> None:
    ignored: Counter[str] = Counter()
    rows = [
        {"id": 1, "prompt": "a", "temprature": 0.5, "temperature": 1, "source": None},
        {"id": 2, "messages": CHAT, "prompt": "a", "tools": [], "n": 3, "temprature": 0},
        {"id": 3, "text": "t", "tools": [{"type": "function"}]},
        {"id": 4, "foo": 1},  # rejected: counted as a reject only
        batch({"messages": CHAT, "user": "u"}, more=1),
    ]
    for row in rows:
        parse_row(Line("f.jsonl", 1, json.dumps(row).encode()), 0, ModelSeen(), ignored)
    assert ignored == {"temprature": 2, "prompt": 1, "n": 1, "tools": 1}


def test_names_of_fields_fill_no_memory() -> None:
    ignored: Counter[str] = Counter()
    for number in range(MAX_NAMES + 10):
        parse_row(Line("f", 1, json.dumps({"text": "t", f"f{number}": 1}).encode()), number, ModelSeen(), ignored)
    assert len(ignored) == MAX_NAMES
