"""The recordings obey the rules that the simulator is held to, and the comparison sees what is broken."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.checks import (
    ABORTED,
    CHECKS,
    Check,
    aborted_as,
    finished_as,
    judged,
    missing_metrics,
    stop_string_is_cut_off,
    thought,
)
from tests.conformance.recordings import DONE, VERSIONS, Recording, load, names, unlike
from workers.answers import MAX_MESSAGE, Generated, InvalidAnswer, error_message, read_answer

SERVED = {check.name: check for check in CHECKS}
ALL = [(version, name) for version in VERSIONS for name in names(version)]
ANSWERS = [
    (version, name)
    for version, name in ALL
    if (one := load(version, name)).status == 200 and one.path in {"/generate", "/v1/chat/completions"} and not one.streamed
]
ERRORS = [(version, name) for version, name in ALL if load(version, name).status != 200]


def broken(name: str, change: Callable[[Any], Any]) -> list[str]:
    """What the check of a name says of the recorded answer with a change."""
    recording = load("0.5.11", name)
    body = recording.json
    change(body)
    return judged(SERVED[name], recording, replace(recording, body=json.dumps(body).encode()))


def broken_stream(name: str, change: Callable[[list[Any]], Any]) -> list[str]:
    recording = load("0.5.11", name)
    chunks = recording.chunks
    change(chunks)
    events = [json.dumps(chunk).encode() for chunk in chunks] + [DONE]
    return judged(SERVED[name], recording, replace(recording, body=b"\n\n".join(b"data: " + event for event in events)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_recording_obeys_the_rules_of_its_check(version: str, check: Check) -> None:
    recording = load(version, check.name)
    assert judged(check, recording, recording) == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*ABORTED, "aborted_queued_generate", "aborted_queued_chat"])
def test_a_recorded_abort_is_an_abort(version: str, name: str) -> None:
    recording = load(version, name)
    assert aborted_as(recording, recording) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_stop_string_ends_a_chat(version: str) -> None:
    recording = load(version, "chain_chat_stop")
    assert [
        line for rule in (finished_as("stop"), stop_string_is_cut_off, thought("some")) for line in rule(recording, recording)
    ] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_both_versions_have_the_same_recordings(version: str) -> None:
    assert set(names(version)) == set(names(VERSIONS[0])) >= {*SERVED, *ABORTED, "metrics", "queue_full"}


def test_a_missing_key_is_seen() -> None:
    assert broken("generate_text", lambda body: body["meta_info"].pop("prompt_tokens")) == [
        "$.meta_info.prompt_tokens: missing"
    ]
    assert broken("v1_models", lambda body: body["data"][0].pop("max_model_len")) == ["$.data[0].max_model_len: missing"]


def test_another_type_is_seen() -> None:
    assert broken("generate_text", lambda body: body.update(text=5)) == ["$.text: number, recorded string"]
    assert broken("generate_text", lambda body: body["meta_info"].update(finish_reason=None)) == [
        "$.meta_info.finish_reason: null, recorded object"
    ]
    assert broken("v1_models", lambda body: body.update(data=[])) == ["$.data: empty"]


def test_what_was_null_may_be_anything() -> None:
    assert broken("chat", lambda body: body["choices"][0].update(logprobs={"content": []})) == []


def test_another_status_or_kind_of_content_is_seen() -> None:
    recording = load("0.5.11", "err_bad_top_p_chat")
    assert unlike(recording, replace(recording, status=500))[0].startswith("status 500, recorded 400")
    assert unlike(recording, replace(recording, content_type="text/event-stream"))[0].startswith("text/event-stream, recorded")
    assert unlike(recording, replace(recording, body=b"{"))[0].startswith("not JSON")


def test_another_error_is_seen_but_another_number_in_it_is_not() -> None:
    name = "err_prompt_too_long_chat"
    assert broken(name, lambda body: body.update(message=body["message"].replace("4910", "5000"))) == []
    assert len(broken(name, lambda body: body.update(message="Too long."))) == 1
    assert broken(name, lambda body: body.update(type="Bad Request")) == [
        "error's type: 'Bad Request', recorded 'BadRequestError'"
    ]
    assert broken(name, lambda body: body.update(code=422)) == ["error's code: 422, recorded 400"]


def test_counts_that_do_not_fit_are_seen() -> None:
    assert broken("generate_text", lambda body: body["meta_info"].update(completion_tokens=7)) == [
        "7 tokens, budget 8",
        "8 ids, counted 7",
    ]
    assert broken("generate_stop_string", lambda body: body.update(text=" world")) == ["'o' is left in the text"]
    assert broken("chat", lambda body: body["usage"].update(reasoning_tokens=0))[0].endswith(
        "0 of 8 tokens thought; wanted all"
    )
    assert broken("chat", lambda body: body["choices"][0]["message"].update(content="")) == ["content ''"]
    assert broken("server_info", lambda body: body["internal_states"][0].update(effective_max_running_requests_per_dp=0)) == [
        "running limit 0"
    ]


def test_a_stream_that_lacks_an_event_is_seen() -> None:
    assert "no event like" in broken_stream("chat_stream_usage", lambda chunks: chunks.pop())[0]  # usage
    assert "no event like" in broken_stream("chain_chat_stream", lambda chunks: chunks.pop(0))[0]  # role
    recording = load("0.5.11", "chat_stream_usage")
    cut = replace(recording, body=recording.body.removesuffix(b"data: [DONE]"))
    assert unlike(recording, cut)[0].startswith("ends with")


def test_a_stream_in_another_order_is_seen() -> None:
    assert broken_stream("chain_chat_stream", lambda chunks: chunks.insert(1, chunks.pop(5)))[0].startswith("order of deltas")
    assert broken_stream("generate_stream", lambda chunks: chunks.insert(0, chunks.pop()))[0].startswith("counts [8, 1")
    assert broken_stream("generate_stream", lambda chunks: chunks[2]["meta_info"].pop("cached_tokens")) == [
        "an event without ['cached_tokens']"
    ]


def test_another_finish_of_an_abort_is_seen() -> None:
    recording = load("0.5.11", "aborted_queued_generate")
    body = recording.json
    body["meta_info"]["finish_reason"]["message"] = "Aborted"
    assert aborted_as(recording, replace(recording, body=json.dumps(body).encode()))[0].startswith("finish reason")


def test_missing_metrics_and_labels_are_seen() -> None:
    recorded = load("0.5.11", "metrics").body.decode()
    assert missing_metrics(recorded, recorded) == []
    assert missing_metrics(recorded, recorded.replace("sglang:token_usage", "sglang:usage"), ("token_usage",)) == [
        "sglang:token_usage is no gauge",
        "sglang:token_usage has not the labels ('engine_type', 'model_name', 'moe_ep_rank', 'pp_rank', 'tp_rank')",
    ]


# --- what the worker makes of every recording ---


def usage_of(recording: Recording) -> Any:
    return recording.json.get("usage") or recording.json["meta_info"]


def read(recording: Recording) -> Generated:
    return read_answer(recording.path, recording.body)


@pytest.mark.parametrize(("version", "name"), ANSWERS)
def test_the_worker_reads_every_recorded_answer(version: str, name: str) -> None:
    recording = load(version, name)
    found, usage = read(recording), usage_of(recording)
    told = (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.reasoning_tokens)
    assert told == (usage.get("prompt_tokens", 0), usage["completion_tokens"], usage.get("reasoning_tokens"))
    if recording.path == "/generate":
        reason = recording.json["meta_info"]["finish_reason"]
        assert (found.answer.content, list(found.answer.output_ids or ())) == (
            recording.json["text"],
            recording.json["output_ids"],
        )
        assert (found.finish, found.matched, found.message) == (reason["type"], reason.get("matched"), reason.get("message"))
    else:
        choice = recording.json["choices"][0]
        message = choice["message"]
        assert (found.answer.content, found.answer.reasoning_content) == (message["content"], message["reasoning_content"])
        assert (found.finish, found.matched) == (choice["finish_reason"], choice["matched_stop"])


@pytest.mark.parametrize(("version", "name"), ERRORS)
def test_the_worker_finds_the_sentence_of_every_recorded_error_and_takes_none_for_an_answer(version: str, name: str) -> None:
    recording = load(version, name)
    sentence = error_message(recording.body)
    assert sentence
    assert len(sentence) <= MAX_MESSAGE
    try:
        told = recording.json
    except ValueError:
        assert sentence == recording.body.decode()
    else:
        inner = told.get("error", told)
        wanted = inner if isinstance(inner, str) else inner.get("message")
        assert wanted is None or wanted.startswith(sentence)
    with pytest.raises(InvalidAnswer):
        read(recording)
