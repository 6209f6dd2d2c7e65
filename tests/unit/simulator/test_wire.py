from typing import Any

import msgspec
import pytest

from ops.simulator import wire
from ops.simulator.wire import OLD, VERSIONS, Finished
from tests.conformance.recordings import differences, load
from workers.answers import read_answer


def finished(**changes: Any) -> Finished:
    fields: dict[str, Any] = {
        "rid": "r",
        "text": " the end",
        "reasoning": None,
        "output_ids": [101, 102],
        "prompt_tokens": 3,
        "reasoning_tokens": 0,
        "reason": {"type": "length", "length": 2},
        "started_at": 10.0,
        "finished_at": 12.0,
    }
    return Finished(**fields | changes)


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_have_the_shapes_of_the_recorded_ones(version: str) -> None:
    assert differences(load(version, "generate_text").json, wire.native(finished(), version)) == []
    assert differences(load(version, "completions").json, wire.completion(finished(), version, "m")) == []
    thought = finished(reasoning="so", reasoning_tokens=1, reason={"type": "stop", "matched": 2})
    assert differences(load(version, "chain_chat").json, wire.chat(thought, version, "m")) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_tells_nothing_that_its_version_does_not(version: str) -> None:
    """Timing keys come and go with what the server measured; the others are the recorded ones."""
    told = wire.native(finished(), version)["meta_info"]
    assert set(told) <= set(load(version, "generate_text").json["meta_info"]) | {"decode_throughput"}
    chat = load(version, "chain_chat").json
    found = wire.chat(finished(reasoning="so", reasoning_tokens=1), version, "m")
    assert set(found) == set(chat)
    assert set(found["choices"][0]) == set(chat["choices"][0])
    assert set(found["choices"][0]["message"]) == set(chat["choices"][0]["message"])
    assert set(found["usage"]) == set(chat["usage"])
    assert set(found["metadata"]) == set(chat["metadata"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_native_chunk_has_the_recorded_keys(version: str) -> None:
    chunk = wire.native_chunk(finished(reason={"type": None}), version)
    recorded = load(version, "generate_stream").chunks[1]
    assert set(chunk["meta_info"]) == set(recorded["meta_info"])
    assert chunk["meta_info"]["finish_reason"] is None
    assert (chunk["text"], chunk["output_ids"]) == (" the end", [101, 102])


@pytest.mark.parametrize("version", VERSIONS)
def test_streamed_events_of_the_openai_routes_have_the_recorded_keys(version: str) -> None:
    chat, completion = load(version, "chat_stream_usage").chunks, load(version, "completions_stream").chunks
    assert set(wire.chat_chunk("r", "m", {}, None)) == set(chat[0])
    assert set(wire.chat_chunk("r", "m", {}, None)["choices"][0]) == set(chat[0]["choices"][0])
    assert set(wire.completion_chunk("r", "m", "x", None)) == set(completion[0])
    end = wire.completion_chunk("r", "m", "", {"type": "stop", "matched": 2})["choices"][0]
    assert (end["finish_reason"], end["matched_stop"]) == ("stop", 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_chat_that_ends_while_thinking_has_no_content(version: str) -> None:
    message = wire.chat(finished(text="", reasoning="so", reasoning_tokens=2), version, "m")["choices"][0]["message"]
    recorded = load(version, "chain_chat_max_tokens_in_reasoning").json["choices"][0]["message"]
    assert message["content"] == recorded["content"] == (None if version == OLD else "")
    assert message["reasoning_content"] == "so"


def test_counts_of_thinking_have_a_second_place_in_the_new_version_unless_there_are_none() -> None:
    assert "completion_tokens_details" not in wire.usage(finished(), OLD)
    assert wire.usage(finished(), VERSIONS[1])["completion_tokens_details"] is None
    assert wire.usage(finished(reasoning_tokens=1), VERSIONS[1])["completion_tokens_details"] == {"reasoning_tokens": 1}
    assert wire.usage(finished(), OLD)["total_tokens"] == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_aborted_in_the_queue_tells_as_little_as_the_recorded_one(version: str) -> None:
    told = wire.native(finished(text="", output_ids=[], reason=wire.ABORTED_IN_QUEUE), version)
    recorded = load(version, "aborted_queued_generate").json
    assert set(told["meta_info"]) == set(recorded["meta_info"])
    assert told["meta_info"]["finish_reason"] == recorded["meta_info"]["finish_reason"]


def test_what_was_aborted_while_running_says_so() -> None:
    recorded = load(OLD, "aborted_generate").json["meta_info"]["finish_reason"]
    assert wire.aborted("Aborted") == recorded


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_are_the_recorded_ones(version: str) -> None:
    recorded = load(version, "err_prompt_too_long_generate_stream").chunks[0]
    assert wire.native_error_event(recorded["error"]["message"], version) == recorded
    assert wire.unsupported_media_type() == load(version, "err_content_type").json
    assert wire.openai_error("The request queue is full.", 503, "503") == load(version, "queue_full").json
    assert wire.native_error("input_ids cannot be empty.") == load(version, "err_empty_input_ids").json


@pytest.mark.parametrize("version", VERSIONS)
def test_the_worker_reads_what_the_simulator_writes(version: str) -> None:
    done = finished(reasoning="so", reasoning_tokens=1, reason={"type": "stop", "matched": 2})
    chat = read_answer("/v1/chat/completions", msgspec.json.encode(wire.chat(done, version, "m")))
    assert (chat.answer.content, chat.answer.reasoning_content, chat.finish, chat.matched) == ("the end", "so", "stop", 2)
    native = read_answer("/generate", msgspec.json.encode(wire.native(done, version)))
    assert (native.answer.content, native.usage.completion_tokens, native.retractions) == (" the end", 2, 0)
