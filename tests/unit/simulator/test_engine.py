"""The engine without time: at zero tokens per second it answers at once."""

import asyncio
from typing import Any

import pytest

from ops.simulator.engine import EngineOptions, SimulatedEngine
from ops.simulator.faults import FaultPlan, Rule
from ops.simulator.lengths import LengthModel
from ops.simulator.requests import native_ask, openai_ask
from ops.simulator.wire import OLD, Finished, aborted

USER = [{"role": "user", "content": "Hi"}]


def engine(plan: FaultPlan | None = None, **changes: Any) -> SimulatedEngine:
    options: dict[str, Any] = {
        "version": OLD,
        "model": "m",
        "max_running": 2,
        "lengths": LengthModel(20, 0.0, 4096, 0),
        "tokens_per_s": 0.0,
        "speed": 1.0,
        "context_length": 2048,
        "max_queued": None,
        "reasoning": True,
        "thinking_share": 0.5,
        "requests_kept": 3,
    }
    return SimulatedEngine(EngineOptions(**options | changes), plan or FaultPlan())


async def generate(on: SimulatedEngine, **sampling: Any) -> Finished:
    ask = native_ask({"text": "Hi", "sampling_params": sampling}, OLD, 2048)
    on.admit(ask)
    return await on.generate(ask)


async def chat(on: SimulatedEngine, **body: Any) -> Finished:
    ask = openai_ask({"messages": USER, **body}, OLD, 2048, chat=True)
    on.admit(ask)
    return await on.generate(ask)


async def test_an_answer_ends_by_itself_or_by_its_budget() -> None:
    assert (await generate(engine())).reason == {"type": "stop", "matched": 2}
    cut = await generate(engine(), max_new_tokens=7)
    assert (cut.reason, len(cut.output_ids), len(cut.text.split())) == ({"type": "length", "length": 7}, 7, 7)


async def test_a_request_that_ignores_the_end_of_text_decodes_its_whole_budget() -> None:
    done = await generate(engine(), max_new_tokens=300, ignore_eos=True)
    assert (done.reason, len(done.output_ids)) == ({"type": "length", "length": 300}, 300)
    unlimited = await chat(engine(), ignore_eos=True)
    assert unlimited.prompt_tokens + len(unlimited.output_ids) == 2048
    assert unlimited.reason["type"] == "length"


@pytest.mark.parametrize("stop", [" and", [" and", "never said"]])
async def test_a_stop_string_ends_the_text_before_it(stop: str | list[str]) -> None:
    done = await generate(engine(), max_new_tokens=300, ignore_eos=True, stop=stop)
    assert done.reason == {"type": "stop", "matched": " and"}
    assert " and" not in done.text
    assert len(done.output_ids) == len(done.text.split()) + 1


async def test_a_chat_thinks_its_share_and_then_answers() -> None:
    done = await chat(engine())
    assert done.reasoning is not None
    assert (len(done.reasoning.split()), len(done.text.split()), done.reasoning_tokens) == (10, 10, 10)
    cut = await chat(engine(), max_tokens=4)
    assert (cut.text, cut.reasoning_tokens, cut.reason["type"]) == ("", 4, "length")
    off = await chat(engine(), chat_template_kwargs={"enable_thinking": False})
    assert (off.reasoning, off.reasoning_tokens, len(off.text.split())) == (None, 0, 20)
    assert (await chat(engine(reasoning=False))).reasoning is None


async def test_thoughts_stay_in_the_content_if_asked_but_are_counted() -> None:
    apart, whole = await chat(engine()), await chat(engine(), separate_reasoning=False)
    assert (whole.reasoning, whole.reasoning_tokens) == (None, 10)
    assert whole.text == f" {apart.reasoning}{apart.text}"


async def test_the_same_prompt_has_the_same_answer_on_every_run() -> None:
    one, other = await generate(engine()), await generate(engine())
    assert (one.text, one.output_ids) == (other.text, other.output_ids)


async def test_faults_of_length_and_words() -> None:
    thinking = await chat(engine(FaultPlan([Rule(kind="cut_in_thinking")])))
    assert (thinking.text, thinking.reasoning_tokens) == ("", 20)
    loop = await generate(engine(FaultPlan([Rule(kind="repetition")])))
    assert set(loop.text.split()) == {"again", "and"}


async def test_what_was_asked_is_remembered_and_counted() -> None:
    on = engine()
    for _ in range(4):
        await generate(on, max_new_tokens=5)
    assert [seen.outcome for seen in on.requests] == ["length"] * 3  # no more are kept
    assert (on.finished, on.completion_tokens_total, list(on.tries.values())) == (4, 20, [4])


async def test_an_abort_takes_a_request_and_those_whose_ids_begin_with_its_id() -> None:
    on = engine(tokens_per_s=0.001, max_running=8)
    asks = {rid: native_ask({"text": rid, "rid": rid}, OLD, 2048) for rid in ("a", "a-1", "b-1", "b-2")}
    tasks = {}
    for rid, ask in asks.items():
        on.admit(ask)
        tasks[rid] = asyncio.create_task(on.generate(ask))
    await asyncio.sleep(0)
    on.abort("a", everything=False)
    on.abort("b", everything=False)  # nobody's whole id
    on.abort("", everything=False)
    assert [(await tasks[rid]).reason["type"] for rid in ("a", "a-1")] == ["abort", "abort"]
    assert sorted(on.asks) == ["b-1", "b-2"]
    on.abort("", everything=True)
    assert [(await tasks[rid]).reason for rid in ("b-1", "b-2")] == [aborted("Aborted")] * 2
