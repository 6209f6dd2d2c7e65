"""The small models on the real SGLang: known tokens, and a running limit that comes from state slots."""

import asyncio
import re
import time
from collections.abc import Callable

import httpx
import pytest

from tests.sglang.conftest import RealEngine
from workers.answers import Generated
from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id
from workers.gauges import EngineGauges

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

GREEDY = Sampling(max_tokens=8, temperature=0.0)
BY_TRANSFORMERS = {
    "tiny-qwen3": ((149, 201, 3, 244, 12, 363), (203, 89, 112, 203, 89, 112, 203, 89)),
    "tiny-hybrid": ((352, 222, 321, 34, 480, 316), (72, 91, 337, 502, 133, 435, 133, 435)),
}
"""A prompt and what transformers' own `generate` gives for it with the same weights.

Of 3,840 random prompts these are (nearly) the ones with the clearest choices: at each of the eight tokens the best logit
leads the second by at least 0.05 (0.08 for the hybrid), where bfloat16 rounds a sum in another order by about 0.004."""


def generate(engine: RealEngine, input_ids: tuple[int, ...], count: int) -> list[Generated]:
    async def all_at_once() -> list[Generated]:
        async with Engine(engine.url) as client:
            prompts = (Prompt(id="p", row=row, input_ids=input_ids) for row in range(count))
            return await asyncio.gather(*(client.generate(prompt, GREEDY, new_request_id()) for prompt in prompts))

    return asyncio.run(all_at_once())


def running_limit(engine: RealEngine) -> int | None:
    async def look() -> int | None:
        async with Engine(engine.url) as client:
            return (await client.info()).running_limit

    return asyncio.run(look())


def raw(metrics: str, name: str, labels: str = "") -> float:
    """The sum of a metric's series as the page shows them, read without any of our code."""
    found = re.findall(rf"^sglang:{name}{{[^}}]*{labels}[^}}]*}} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


def assert_gauges_are_what_the_servers_pages_say(engine: RealEngine, input_ids: tuple[int, ...]) -> None:
    """While it works, and when it has ended. Part of the tests below, because each start of a server takes half a minute."""
    prompt = Prompt(id="p", row=0, input_ids=input_ids)
    long = Sampling(max_tokens=400, temperature=0.0)

    async def at_work() -> list[EngineGauges]:
        async with Engine(engine.url) as client:
            answers = [asyncio.create_task(client.generate(prompt, long, new_request_id())) for _ in range(20)]
            seen = []
            while not all(answer.done() for answer in answers):
                seen.append(await client.gauges())
                await asyncio.sleep(0.1)
            await asyncio.gather(*answers)
            ends = time.monotonic() + 30
            while seen[-1].running != 0 or seen[-1] != seen[-2]:  # its pages follow a moment after its answers
                assert time.monotonic() < ends, seen[-1]
                await asyncio.sleep(0.5)
                seen.append(await client.gauges())
            return seen

    *seen, idle = asyncio.run(at_work())
    metrics = httpx.get(f"{engine.url}/metrics", timeout=10).text
    load = httpx.get(f"{engine.url}/v1/loads", timeout=10).json()["loads"][0]
    info = httpx.get(f"{engine.url}/server_info", timeout=10).json()
    assert (idle.running, idle.queued) == (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
    assert idle.kv_tokens == load["max_total_num_tokens"] == info["max_total_num_tokens"]
    assert idle.running_limit == info["internal_states"][0]["effective_max_running_requests_per_dp"]
    assert idle.decoded_total == raw(metrics, "realtime_tokens_total", 'mode="decode"') > 0
    assert idle.finished_total == raw(metrics, "generation_tokens_total") > 0
    assert idle.accept_length is None, "it does not speculate"
    assert max(one.running or 0 for one in seen) > 1
    assert max(one.kv_usage or 0 for one in seen) > 0
    states = [one.state_usage for one in seen if one.state_usage is not None]
    assert bool(states) == (engine.model == "tiny-hybrid"), "only a hybrid model has state slots"


def test_a_dense_model_gives_the_tokens_that_transformers_gives(
    start_sglang: Callable[[str, str], RealEngine], version: str
) -> None:
    engine = start_sglang(version, "tiny-qwen3")
    prompt, expected = BY_TRANSFORMERS["tiny-qwen3"]
    (found,) = generate(engine, prompt, 1)
    assert found.answer.output_ids == expected
    assert (found.finish, found.usage.prompt_tokens, found.usage.completion_tokens) == ("length", 6, 8)
    assert_gauges_are_what_the_servers_pages_say(engine, prompt)


def test_a_hybrid_model_runs_what_its_limit_says_and_queues_the_rest(
    start_sglang: Callable[[str, str], RealEngine], version: str
) -> None:
    engine = start_sglang(version, "tiny-hybrid")
    assert running_limit(engine) == 16  # not the 2,048 that a dense model of this size gets
    prompt, expected = BY_TRANSFORMERS["tiny-hybrid"]
    found = generate(engine, prompt, 24)
    assert [one.usage.completion_tokens for one in found] == [8] * 24
    assert [one.answer.output_ids for one in found] == [expected] * 24
    assert_gauges_are_what_the_servers_pages_say(engine, prompt)
