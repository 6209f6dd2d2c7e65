"""What the worker makes of every recorded answer of the real SGLang, both versions."""

import pytest

from tests.conformance.recordings import VERSIONS, load
from workers.engine import InvalidAnswer, error_message, read_answer

GOOD = {
    "generate_text": ("length", None),
    "generate_input_ids": ("length", None),
    "generate_stop_string": ("stop", "o"),
    "generate_stop_token": ("stop", 2),
    "chat": ("length", None),
    "chat_separate_reasoning_true": ("length", None),
    "chain_chat": ("stop", 2),
    "chain_chat_max_tokens_in_reasoning": ("length", None),
    "aborted_generate": ("abort", None),
    "aborted_chat": ("abort", None),
}
ERRORS = {
    "err_bad_top_p_chat": "top_p must be in (0, 1], got 5.0.",
    "err_empty_messages_chat": "Messages cannot be empty.",
    "err_no_input_generate": "Either text, input_ids or input_embeds should be provided.",
    "err_empty_input_ids": "input_ids cannot be empty.",
    "err_prompt_too_long_generate": "The input (3000 tokens) is longer than the model's context length (2048 tokens).",
    "queue_full": "The request queue is full.",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", GOOD)
def test_a_recorded_answer_is_read(version: str, name: str) -> None:
    recorded = load(version, name)
    found = read_answer(recorded.path, recorded.body)
    finish, matched = GOOD[name]
    assert found.finish == finish
    if matched is not None:
        assert found.matched == matched
    usage = recorded.json["usage"] if "usage" in recorded.json else recorded.json["meta_info"]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert found.usage.reasoning_tokens == usage["reasoning_tokens"]
    if "output_ids" in recorded.json:
        assert list(found.answer.output_ids or ()) == recorded.json["output_ids"]
        assert found.answer.content == recorded.json["text"]
    else:
        message = recorded.json["choices"][0]["message"]
        assert (found.answer.content, found.answer.reasoning_content) == (message["content"], message["reasoning_content"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ERRORS)
def test_the_sentence_of_a_recorded_error_is_found(version: str, name: str) -> None:
    assert error_message(load(version, name).body) == ERRORS[name]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*ERRORS, "err_malformed_json_generate", "err_unknown_sampling_param_generate"])
def test_no_recorded_error_is_taken_for_an_answer(version: str, name: str) -> None:
    recorded = load(version, name)
    with pytest.raises(InvalidAnswer):
        read_answer(recorded.path, recorded.body)
