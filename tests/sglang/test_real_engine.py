"""Prompts through a real worker, real Redis and a real S3 server into the real SGLang, two versions of it."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.fleet.harness import FleetUnderTest
from tests.sglang.conftest import RealEngine
from workers.answers import Generated
from workers.contract.errors import PromptRejected
from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

HELLO = msgspec.Raw(b'[{"role":"user","content":"What is the capital of France?"}]')


@pytest.fixture
def chain(start_sglang: Callable[[str, str], RealEngine], version: str) -> RealEngine:
    """The model whose every chat answers the same known words."""
    return start_sglang(version, "tiny-chain")


def ask(engine: RealEngine, prompt: Prompt, sampling: Sampling) -> Generated:
    async def once() -> Generated:
        async with Engine(engine.url) as client:
            return await client.generate(prompt, sampling, new_request_id())

    return asyncio.run(once())


def test_a_chat_answer_is_read_with_its_reasoning_apart(chain: RealEngine) -> None:
    found = ask(chain, Prompt(id="a", row=0, messages=HELLO), Sampling(max_tokens=64, temperature=0.0))
    assert (found.answer.content or "").strip() == "The capital of France is Paris."  # 0.5.23 keeps the leading space
    assert (found.answer.reasoning_content or "").strip() == "let me think about it"
    assert (found.finish, found.usage.completion_tokens, found.usage.reasoning_tokens) == ("stop", 15, 7)


def test_thinking_off_reaches_the_chat_template(chain: RealEngine) -> None:
    thinking = ask(chain, Prompt(id="a", row=0, messages=HELLO), Sampling(max_tokens=4))
    off = ask(chain, Prompt(id="a", row=0, messages=HELLO), Sampling(max_tokens=4, thinking=False))
    assert off.usage.prompt_tokens > thinking.usage.prompt_tokens  # the template adds an empty thinking block


def test_text_and_ids_come_back_with_token_ids(chain: RealEngine) -> None:
    for prompt in (Prompt(id="t", row=0, text="The capital"), Prompt(id="i", row=1, input_ids=(17, 18, 19))):
        found = ask(chain, prompt, Sampling(max_tokens=5, temperature=0.0))
        assert found.answer.output_ids is not None
        assert len(found.answer.output_ids) == found.usage.completion_tokens == 5
        assert found.finish in {"stop", "length"}


def test_every_sampling_value_is_accepted_by_both_routes(chain: RealEngine) -> None:
    every = Sampling(
        max_tokens=3,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        repetition_penalty=1.1,
        stop=("zzz",),
        seed=7,
        thinking=True,
    )
    assert all(getattr(every, name) is not None for name in every.__struct_fields__)
    for prompt in (Prompt(id="c", row=0, messages=HELLO), Prompt(id="t", row=1, text="The capital")):
        assert ask(chain, prompt, every).usage.completion_tokens == 3


def test_a_prompt_that_is_too_long_is_refused_with_the_engines_words(chain: RealEngine) -> None:
    for prompt in (
        Prompt(id="long", row=0, input_ids=tuple([10] * 3000)),
        Prompt(id="chat", row=1, messages=msgspec.Raw(json.dumps([{"role": "user", "content": "x " * 4000}]).encode())),
    ):
        with pytest.raises(PromptRejected, match="longer than the model's context length"):
            ask(chain, prompt, Sampling(max_tokens=8))


def test_an_aborted_request_is_read_as_aborted(chain: RealEngine) -> None:
    async def abort() -> Generated:
        async with Engine(chain.url) as client:
            ends = time.monotonic() + 40
            while (await client.progress())[0]:  # what an earlier test left; 0.5.23 tells what was a moment ago
                assert time.monotonic() < ends, "it never came to rest"
                await asyncio.sleep(0.2)
            rid = new_request_id()
            prompt = Prompt(id="t", row=0, input_ids=(34,))  # counts up through the vocabulary for a while
            asking = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=1900), rid))
            ends = time.monotonic() + 20
            while not (await client.progress())[0]:  # running requests
                assert time.monotonic() < ends, "the request never ran"
            await client.abort([rid])
            return await asking

    found = asyncio.run(abort())
    assert (found.finish, found.message) == ("abort", "Aborted")


def test_effective_limits_and_progress_are_read(chain: RealEngine) -> None:
    async def look() -> None:
        async with Engine(chain.url) as client:
            info = await client.info()
            assert (info.version, info.model, info.context_length) == (chain.version, "tiny-chain", 2048)
            assert info.running_limit is not None
            assert info.running_limit > 100
            assert await client.probe() is None
            before = await client.progress()
            prompt = Prompt(id="t", row=0, text="go on")
            asking = asyncio.create_task(client.generate(prompt, Sampling(max_tokens=1500), new_request_id()))
            ends = time.monotonic() + 20
            while await client.progress() == before:
                assert time.monotonic() < ends, "no counter moved while the engine decoded"
                await asyncio.sleep(0.2)
            asking.cancel()

    asyncio.run(look())


def source(folder: Path) -> Path:
    rows: list[dict[str, object]] = [
        {"id": f"chat-{n}", "messages": [{"role": "user", "content": f"Question {n}?"}]} for n in range(20)
    ]
    rows += [{"id": f"text-{n}", "prompt": f"Hello number {n}"} for n in range(10)]
    rows += [{"id": "ids", "input_ids": [17, 18, 19]}]
    rows += [{"id": "short", "messages": [{"role": "user", "content": "Cut in thinking."}], "max_tokens": 4}]
    rows += [{"id": "too-long", "prompt": "x " * 4000}]
    path = folder / "source.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_through_the_real_engine_is_whole(chain: RealEngine, sglang_fleet: FleetUnderTest) -> None:
    fleet = sglang_fleet
    fleet.worker(engine=chain.url, FLEET_SLOTS="8")
    done = fleet.producer(
        "enqueue", str(source(fleet.folder)), "--run", "real", "--max-tokens", "32", "--batch-size", "8", "--json"
    )
    assert done.code == 0, done.err
    fleet.wait_complete("real", timeout_s=120)
    audit = fleet.assert_whole("real", prompts=33)
    out = fleet.folder / "out.jsonl"
    assert fleet.producer("collect", "real", "-o", str(out)).code == 0
    rows = {row["id"]: row for row in map(json.loads, out.read_text().splitlines())}
    for n in range(20):
        row = rows[f"chat-{n}"]
        assert (row["content"].strip(), row["reasoning_content"].strip()) == (
            "The capital of France is Paris.",
            "let me think about it",
        )
        assert row["usage"]["reasoning_tokens"] == 7
        assert row["provenance"]["engine_version"] == chain.version
        assert row["provenance"]["model"] == "tiny-chain"
    assert len(rows["ids"]["output_ids"]) == 32
    assert rows["short"]["reason"] == "truncated_thinking"
    assert rows["too-long"]["reason"] == "rejected_by_engine"
    assert "longer than the model's context length" in rows["too-long"]["message"]
    assert audit["failed"] == 2
