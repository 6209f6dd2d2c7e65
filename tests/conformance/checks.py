"""What holds of every SGLang server, recorded, simulated or real: `check_conformance` asks one, and says in what it differs.

Each check is a recorded request: the answer must be like the recorded one, and obey the rules that callers rely on. The
recordings themselves are held to the same rules, so a rule that the real server never obeyed fails.
"""

import json
import re
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from ops.quickstart.processes import wait_until
from tests.conformance.recordings import Recording, Reply, load, send, unlike

Rule = Callable[[Recording, Reply], list[str]]
MODELS = ("tiny-qwen3", "tiny-chain")
"""The first decodes noise until the budget ends. The second thinks seven tokens and ends a chat after fifteen."""
PATIENCE_S = 20.0
SOME_TOKENS = 8


def told(holds: bool, what: str) -> list[str]:
    return [] if holds else [what]


def finished_as(wanted: str) -> Rule:
    """How an answer that is not streamed ended, and whether its counts fit its tokens and its budget."""

    def rule(recording: Recording, reply: Reply) -> list[str]:
        finish, matched, usage = ending(reply)
        sampling = recording.asked.get("sampling_params", recording.asked)
        budget = sampling.get("max_new_tokens", sampling.get("max_tokens"))
        count = usage["completion_tokens"]
        lines = told(finish == wanted, f"finish {finish}, wanted {wanted}")
        lines += told(wanted != "length" or count == budget, f"{count} tokens, budget {budget}")
        lines += told(count <= budget, f"{count} tokens are more than {budget}")
        lines += told((matched is not None) == (wanted == "stop"), f"matched {matched!r} of a {finish}")
        ids = reply.json.get("output_ids")
        return lines + told(ids is None or len(ids) == count, f"{len(ids or [])} ids, counted {count}")

    return rule


def ending(reply: Reply) -> tuple[str | None, object, Any]:
    """Finish reason, what matched, usage."""
    body = reply.json
    if "meta_info" in body:
        reason = body["meta_info"]["finish_reason"]
        return reason["type"], reason.get("matched"), body["meta_info"]
    return body["choices"][0]["finish_reason"], body["choices"][0]["matched_stop"], body["usage"]


def thought(share: str) -> Rule:
    """Where a chat's tokens went: all, some or none into thinking; `inline` if thoughts stay in the content."""

    def rule(_: Recording, reply: Reply) -> list[str]:
        message, usage = reply.json["choices"][0]["message"], reply.json["usage"]
        has = (bool(message["reasoning_content"]), bool(message["content"]))
        count, whole = usage["reasoning_tokens"], usage["completion_tokens"]
        wanted = {
            "all": (has == (True, False), count == whole),
            "some": (has == (True, True), 0 < count < whole),
            "none": (has == (False, True), count == 0),
            "inline": (has == (False, True), count > 0),
        }[share]
        return told(all(wanted), f"thinking and content {has}, {count} of {whole} tokens thought; wanted {share}")

    return rule


def nothing_is_told_of_thinking_cut_short(recording: Recording, reply: Reply) -> list[str]:
    """Null in one version, empty in the other."""
    content = reply.json["choices"][0]["message"]["content"]
    return told(content == (None if recording.version == "0.5.11" else ""), f"content {content!r}")


def stop_string_is_cut_off(recording: Recording, reply: Reply) -> list[str]:
    sampling = recording.asked.get("sampling_params", recording.asked)
    _, matched, _ = ending(reply)
    text = reply.json["text"] if "text" in reply.json else reply.json["choices"][0]["message"]["content"]
    lines = told(matched in sampling["stop"], f"matched {matched!r}, asked {sampling['stop']}")
    return lines + told(str(matched) not in text, f"{matched!r} is left in the text")


def model_is_repeated_unchecked(recording: Recording, reply: Reply) -> list[str]:
    return told(reply.json["model"] == recording.asked["model"], f"model {reply.json['model']}")


def native_stream_grows(recording: Recording, reply: Reply) -> list[str]:
    """Each event holds the whole text so far and the same counts; only the last has a finish reason."""
    chunks = reply.chunks
    always = set.intersection(*(set(chunk["meta_info"]) for chunk in recording.chunks))
    if lacking := [always - set(chunk["meta_info"]) for chunk in chunks if not always <= set(chunk["meta_info"])]:
        return [f"an event without {sorted(lacking[0])}"]
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    ends = [chunk["meta_info"]["finish_reason"] for chunk in chunks]
    lines = told(counts == sorted(counts), f"counts {counts}")
    lines += told([len(chunk["output_ids"]) for chunk in chunks] == counts, "ids are not cumulative")
    lines += told(
        all(one in chunks[-1]["text"] for one in (chunk["text"].rstrip("\ufffd") for chunk in chunks)), "text shrinks"
    )
    return lines + told(bool(ends[-1]) and not any(ends[:-1]), f"finish reasons {ends}")


def openai_stream_ends_once(recording: Recording, reply: Reply) -> list[str]:
    """One finish reason, in the last event with a choice; usage after it, and only if asked for."""
    with_choice = [chunk for chunk in reply.chunks if chunk["choices"]]
    ends = [chunk["choices"][0]["finish_reason"] for chunk in with_choice]
    lines = told(bool(ends[-1]) and not any(ends[:-1]), f"finish reasons {ends}")
    asked = bool(recording.asked.get("stream_options", {}).get("include_usage"))
    counted = [place for place, chunk in enumerate(reply.chunks) if chunk.get("usage")]
    wanted = [len(reply.chunks) - 1] if asked else []
    lines += told(counted == wanted, f"usage in events {counted}, wanted in {wanted}")
    return lines + told(len({chunk["id"] for chunk in reply.chunks}) == 1, "more than one id")


def streamed_chat_thinks_first(_: Recording, reply: Reply) -> list[str]:
    deltas = [chunk["choices"][0]["delta"] for chunk in reply.chunks if chunk["choices"]]
    kinds = ["thinking" if delta.get("reasoning_content") else "content" for delta in deltas if any(delta.values())][1:]
    return told(kinds == sorted(kinds, reverse=True), f"order of deltas {kinds}") + told(
        deltas[0].get("role") == "assistant", "no role in the first delta"
    )


def keys_that_the_worker_reads(recording: Recording, reply: Reply) -> list[str]:
    """Of `workers/engine.py`: version, model, limits."""
    info = reply.json
    lines = told(info["version"] == recording.version, f"version {info['version']}")
    lines += told(bool(info["served_model_name"]), "no served_model_name")
    lines += told(info["max_req_input_len"] > 0 and info["dp_size"] >= 1, "no max_req_input_len or dp_size")
    limit = info["internal_states"][0]["effective_max_running_requests_per_dp"]
    return lines + told(isinstance(limit, int) and limit > 0, f"running limit {limit}")


def counts_that_the_worker_reads(_: Recording, reply: Reply) -> list[str]:
    load_of_one = reply.json["loads"][0]
    read = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens")
    return [f"{name}: {load_of_one.get(name)!r}" for name in read if not isinstance(load_of_one.get(name), int)]


@dataclass(frozen=True)
class Check:
    """A recorded request that is asked again, and rules for its answer."""

    name: str
    rules: tuple[Rule, ...] = ()
    model: str = MODELS[0]


def _chain(name: str, *rules: Rule) -> Check:
    return Check(name, rules, MODELS[1])


_STREAM = (openai_stream_ends_once, streamed_chat_thinks_first)
CHECKS = (
    *(Check(name) for name in ("health", "model_info", "v1_models", "v1_models_id", "get_load", "abort_unknown_rid")),
    Check("server_info", (keys_that_the_worker_reads,)),
    Check("v1_loads", (counts_that_the_worker_reads,)),
    Check("generate_text", (finished_as("length"),)),
    Check("generate_input_ids", (finished_as("length"),)),
    Check("generate_stop_string", (finished_as("stop"), stop_string_is_cut_off)),
    Check("generate_stream", (native_stream_grows,)),
    Check("chat", (finished_as("length"), thought("all"), nothing_is_told_of_thinking_cut_short)),
    Check("chat_separate_reasoning_true", (finished_as("length"), thought("all"))),
    Check("chat_separate_reasoning_false", (finished_as("length"), thought("inline"))),
    Check("chat_no_thinking", (finished_as("length"), thought("none"))),
    Check("chat_stream_usage", _STREAM),
    Check("chat_stream_nousage", _STREAM),
    Check("completions", (finished_as("length"),)),
    Check("completions_stream", (openai_stream_ends_once,)),
    Check("unknown_model_chat", (finished_as("length"), model_is_repeated_unchecked)),
    Check("unknown_model_completions", (model_is_repeated_unchecked,)),
    *(
        Check(name)
        for name in (
            "err_prompt_too_long_generate",
            "err_prompt_too_long_generate_stream",
            "err_prompt_too_long_chat",
            "err_prompt_too_long_chat_stream",
            "max_new_tokens_too_large_generate",
            "max_tokens_too_large_chat",
            "err_bad_temperature_generate",
            "err_bad_top_p_generate",
            "err_unknown_sampling_param_generate",
            "err_bad_temperature_chat",
            "err_bad_top_p_chat",
            "err_wrong_type_chat",
            "err_max_tokens_negative_chat",
            "err_max_tokens_zero_chat",
            "err_malformed_json_generate",
            "err_malformed_json_chat",
            "err_missing_messages_chat",
            "err_empty_messages_chat",
            "err_no_input_generate",
            "err_empty_input_ids",
            "err_unknown_model_get",
            "err_content_type",
            "err_404",
            "err_405",
        )
    ),
    _chain("chain_generate", finished_as("stop")),
    _chain("chain_chat", finished_as("stop"), thought("some")),
    _chain("chain_chat_stream", *_STREAM),
    _chain("chain_chat_stream_no_stream_reasoning", *_STREAM),
    _chain("chain_chat_no_separate", finished_as("stop"), thought("inline")),
    _chain("chain_chat_max_tokens_in_reasoning", finished_as("length"), thought("all"), nothing_is_told_of_thinking_cut_short),
)


def judged(check: Check, recording: Recording, reply: Reply) -> list[str]:
    """In what a reply differs from the recording, or what rule it breaks."""
    lines = unlike(recording, reply)
    return lines or [line for rule in check.rules for line in rule(recording, reply)]


def check_conformance(base_url: str, version: str, model: str) -> dict[str, list[str]]:
    """Ask a live server all that was asked of the real one with this model.

    Returns: What differs, by recording; empty if the server conforms.
    """
    found: dict[str, list[str]] = {}
    for check in CHECKS:
        if check.model == model:
            recording = load(version, check.name)
            found[check.name] = judged(check, recording, send(base_url, recording))
    if model == MODELS[0]:
        found |= {name: aborted_while_running(base_url, load(version, name)) for name in ABORTED}
        found["metrics"] = missing_counters_of(base_url, version)
    return {name: lines for name, lines in found.items() if lines}


# --- what needs a second request at the right moment ---

ABORTED = ("aborted_generate", "aborted_chat", "aborted_chat_stream")


@dataclass
class InFlight:
    """A request whose answer is still to come."""

    base_url: str
    recording: Recording
    instead: dict[str, object] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self.replies.append(send(self.base_url, self.recording, **self.instead))
        except (OSError, HTTPException) as error:
            self.replies.append(Reply(0, "", repr(error).encode()))

    def reply(self) -> Reply:
        """The answer; status 0 if the connection was lost."""
        wait_until(lambda: bool(self.replies), PATIENCE_S, f"{self.recording.name} is answered")
        return self.replies[0]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def abort(base_url: str, **body: object) -> None:
    request = urllib.request.Request(f"{base_url}/abort_request", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    urllib.request.urlopen(request, timeout=10).close()


def load_of(base_url: str) -> dict[str, Any]:
    """Counts of a server's only rank."""
    found: dict[str, Any] = json.loads(get(f"{base_url}/v1/loads"))["loads"][0]
    return found


def wait_for_load(base_url: str, running: int, waiting: int = 0) -> None:
    """Until so many requests run and wait."""

    def reached() -> bool:
        load_now = load_of(base_url)
        return (load_now["num_running_reqs"], load_now["num_waiting_reqs"]) == (running, waiting)

    wait_until(reached, PATIENCE_S, f"{running} requests run and {waiting} wait at {base_url}")


def wait_for_some_tokens(base_url: str) -> None:
    before = load_of(base_url)["num_used_tokens"]
    wait_until(lambda: load_of(base_url)["num_used_tokens"] > before + SOME_TOKENS, PATIENCE_S, f"{base_url} decodes")


def aborted_while_running(base_url: str, recording: Recording) -> list[str]:
    """An abort by the whole id ends the request as it was recorded; one by the beginning of the id does nothing."""
    asked, rid = InFlight(base_url, recording), recording.asked["rid"]
    wait_for_load(base_url, running=1)
    for sent in (rid[:-1], rid):
        wait_for_some_tokens(base_url)
        abort(base_url, rid=sent)
    lines = aborted_as(recording, asked.reply())
    wait_for_load(base_url, running=0)
    return lines


def aborted_as(recording: Recording, reply: Reply) -> list[str]:
    # Content or thinking is null or not by the moment of the abort.
    lines = [line for line in unlike(recording, reply) if ".message." not in line]
    if lines:
        return lines
    body = reply.chunks[-1] if reply.streamed else reply.json
    recorded = recording.chunks[-1] if reply.streamed else recording.json
    if "meta_info" in body:
        found, wanted = body["meta_info"]["finish_reason"], recorded["meta_info"]["finish_reason"]
    else:
        found, wanted = body["choices"][0]["finish_reason"], recorded["choices"][0]["finish_reason"]
    return told(found == wanted, f"finish reason {found}, recorded {wanted}")


READ = ("realtime_tokens_total", "num_running_reqs", "num_queue_reqs", "token_usage", "max_total_num_tokens")
"""Families that the worker and the dashboards read, and which a server has from its start."""


def missing_metrics(wanted: str, found: str, families: tuple[str, ...] = ("",)) -> list[str]:
    """Families, their kind and their labels in one Prometheus text that another lacks."""
    names = "|".join(families)
    lines = [
        f"{family} is no {kind}"
        for family, kind in re.findall(rf"^# TYPE (sglang:(?:{names})\w*) (\S+)$", wanted, re.MULTILINE)
        if f"# TYPE {family} {kind}\n" not in found
    ]
    samples = set(re.findall(rf"^(sglang:(?:{names})\w*)\{{(.*)\}} ", wanted, re.MULTILINE))
    for family, labels in {(family, tuple(re.findall(r'(\w+)="', labels))) for family, labels in samples}:
        pattern = rf"^{family}\{{" + ",".join(rf'{name}="[^"]*"' for name in labels) + r"\} "
        lines += told(bool(re.search(pattern, found, re.MULTILINE)), f"{family} has not the labels {labels}")
    return lines


def missing_counters_of(base_url: str, version: str) -> list[str]:
    """What a caller reads of the recorded server's metrics and this one lacks."""
    return missing_metrics(load(version, "metrics").body.decode(), get(f"{base_url}/metrics"), READ)
