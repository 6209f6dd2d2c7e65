import msgspec
import pytest

from workers.answers import InvalidAnswer, error_message, read_answer
from workers.contract.request import CHAT, GENERATE
from workers.contract.schema import Prompt
from workers.quality import Verdict, judge

GOOD = (
    b'{"text":"x","output_ids":[1],"meta_info":{"finish_reason":{"type":"stop","matched":2},'
    b'"prompt_tokens":1,"completion_tokens":1}}'
)


def test_an_answer_of_generate_is_read() -> None:
    answer = read_answer(GENERATE, GOOD)
    assert (answer.answer.content, answer.answer.output_ids, answer.finish, answer.matched) == ("x", (1,), "stop", 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        GOOD[:40],
        b'{"text":"x"}',
        b'{"text":null,"meta_info":{}}',
        b'{"error":{"message":"The input is too long"}}',
        b'{"object":"error","message":"nope","code":500}',
        b'{"text":"x","meta_info":{"finish_reason":null,"prompt_tokens":1,"completion_tokens":1}}',
        b"<html>502 Bad Gateway</html>",
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("path", [GENERATE, CHAT])
def test_what_is_not_an_answer_is_never_taken_for_one(path: str, body: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        read_answer(path, body)


def test_a_chat_without_choices_is_no_answer() -> None:
    with pytest.raises(InvalidAnswer, match="no choices"):
        read_answer(CHAT, b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0}}')


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"error":"unknown field `x`"}', "unknown field `x`"),
        (b'{"object":"error","message":"queue full","code":503}', "queue full"),
        (b"Internal Server Error", "Internal Server Error"),
        (b'{"detail":1}', '{"detail":1}'),
        (b"x" * 10_000, "x" * 500),
    ],
)
def test_the_sentence_of_every_recorded_error_shape_is_found(body: bytes, message: str) -> None:
    assert error_message(body) == message


def test_a_tool_call_is_an_answer() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    reply = {
        "choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 9},
    }
    generated = read_answer(CHAT, msgspec.json.encode(reply))
    assert generated.answer.tool_calls == (call,)
    assert judge(Prompt(id="a", row=0, messages=msgspec.Raw(b"[]")), generated) == Verdict()
