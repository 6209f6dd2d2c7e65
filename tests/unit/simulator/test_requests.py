from typing import Any

import pytest

from ops.simulator.engine import Ask
from ops.simulator.requests import NO_LIMIT, Refused, length_problem, native_ask, openai_ask, sampling_problem
from ops.simulator.wire import OLD, VERSIONS, sampling_fields
from tests.conformance.recordings import load

NEW = VERSIONS[1]
CONTEXT = 2048
USER = [{"role": "user", "content": "Hi"}]


def refusal(path: str, body: dict[str, Any], version: str = OLD) -> Refused:
    with pytest.raises(Refused) as caught:
        asked(path, body, version)
    return caught.value


def asked(path: str, body: dict[str, Any], version: str = OLD) -> Ask:
    if path == "/generate":
        return native_ask(body, version, CONTEXT)
    return openai_ask(body, version, CONTEXT, chat=path.startswith("/v1/chat"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name",
    [
        "err_bad_temperature_generate",
        "err_bad_top_p_generate",
        "err_bad_temperature_chat",
        "err_bad_top_p_chat",
        "err_max_tokens_negative_chat",
        "err_empty_messages_chat",
        "err_no_input_generate",
        "err_empty_input_ids",
        "err_prompt_too_long_generate",
    ],
)
async def test_a_refusal_is_the_recorded_one(version: str, name: str) -> None:
    recording = load(version, name)
    found = refusal(recording.path, recording.asked, version)
    assert (found.status, found.body) == (recording.status, recording.json)


async def test_the_versions_refuse_a_temperature_in_other_words() -> None:
    sampling = {"temperature": -1}
    assert sampling_problem(sampling, "max_new_tokens", OLD) == "temperature must be non-negative, got -1."
    assert sampling_problem(sampling, "max_new_tokens", NEW) == "temperature must be a non-negative finite number, got -1."


async def test_the_old_version_fails_of_an_unknown_sampling_parameter_and_the_new_one_names_it() -> None:
    body = {"text": "Hi", "sampling_params": {"nonsense": 1}}
    old, new = refusal("/generate", body, OLD), refusal("/generate", body, NEW)
    assert (old.status, old.body) == (500, load(OLD, "err_unknown_sampling_param_generate").body.decode())
    assert (new.status, new.body) == (400, load(NEW, "err_unknown_sampling_param_generate").json)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_known_sampling_parameter_is_taken(version: str) -> None:
    for name in sampling_fields(version):
        asked("/generate", {"text": "Hi", "sampling_params": {name: None}}, version)
    refused = [name for name in sampling_fields(NEW) if name not in sampling_fields(OLD)]
    assert refused
    for name in refused:
        assert refusal("/generate", {"text": "Hi", "sampling_params": {name: None}}, OLD).status == 500


@pytest.mark.parametrize(("path", "wanted"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")])
async def test_a_missing_prompt_is_a_validation_error(path: str, wanted: str) -> None:
    found = refusal(path, {"model": "m"})
    assert isinstance(found.body, dict)
    assert (found.status, found.body["type"]) == (400, "Bad Request")
    assert found.body["message"].startswith("1 validation error:\n")
    assert f"'{wanted}'" in found.body["message"]


@pytest.mark.parametrize("name", ["temperature", "top_p"])
async def test_a_number_that_is_a_word_is_a_validation_error(name: str) -> None:
    found = refusal("/v1/chat/completions", {"messages": USER, name: "hot"})
    assert isinstance(found.body, dict)
    assert (found.status, found.body["type"]) == (400, "Bad Request")


@pytest.mark.parametrize("top_p", [0, -0.1, 1.1])
async def test_top_p_is_above_zero_and_at_most_one(top_p: float) -> None:
    assert sampling_problem({"top_p": top_p}, "max_tokens", OLD) == f"top_p must be in (0, 1], got {top_p}."
    assert sampling_problem({"top_p": 1.0, "temperature": 0}, "max_tokens", OLD) is None


async def test_budgets_and_what_holds_without_one() -> None:
    assert asked("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 7}}).max_new_tokens == 7
    assert asked("/generate", {"text": "Hi"}).max_new_tokens == 128
    assert asked("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": None}}).max_new_tokens == NO_LIMIT
    assert asked("/v1/chat/completions", {"messages": USER}).max_new_tokens == NO_LIMIT
    assert asked("/v1/chat/completions", {"messages": USER, "max_completion_tokens": 9}).max_new_tokens == 9
    assert asked("/v1/completions", {"prompt": "Hi"}).max_new_tokens == 16


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 0}}),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 0}),
    ],
)
async def test_a_budget_of_none_still_yields_a_token(path: str, body: dict[str, Any]) -> None:
    assert asked(path, body).max_new_tokens == 1


async def test_routes_ids_and_thinking() -> None:
    assert asked("/generate", {"text": "Hi", "rid": "r"}).rid == "r"
    one, other = (asked("/generate", {"text": "Hi"}).rid for _ in range(2))
    assert one != other
    chat = asked("/v1/chat/completions", {"messages": USER})
    assert (chat.route, chat.thinking) == ("chat", True)
    off = {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}
    assert not asked("/v1/chat/completions", off).thinking
    assert asked("/v1/completions", {"prompt": "Hi"}).route == "completion"
    assert asked("/generate", {"text": "Hi"}).route == "native"


def test_a_prompt_must_leave_room_for_its_budget() -> None:
    assert length_problem(2047, 1, CONTEXT) is None
    assert length_problem(10, None, CONTEXT) is None
    assert (
        length_problem(2048, 0, CONTEXT) == "The input (2048 tokens) is longer than the model's context length (2048 tokens)."
    )
    found = length_problem(2000, 49, CONTEXT)
    assert found is not None
    assert (
        "You requested a total of 2049 tokens: 2000 tokens from the input messages and 49 tokens for the completion." in found
    )
