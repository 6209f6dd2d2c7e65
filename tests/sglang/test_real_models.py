"""The small models on the real SGLang: known tokens, and a running limit that comes from state slots."""

import asyncio
from collections.abc import Callable

import pytest

from tests.sglang.conftest import RealEngine
from workers.answers import Generated
from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id

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


def test_a_dense_model_gives_the_tokens_that_transformers_gives(
    start_sglang: Callable[[str, str], RealEngine], version: str
) -> None:
    engine = start_sglang(version, "tiny-qwen3")
    prompt, expected = BY_TRANSFORMERS["tiny-qwen3"]
    (found,) = generate(engine, prompt, 1)
    assert found.answer.output_ids == expected
    assert (found.finish, found.usage.prompt_tokens, found.usage.completion_tokens) == ("length", 6, 8)


def test_a_hybrid_model_runs_what_its_limit_says_and_queues_the_rest(
    start_sglang: Callable[[str, str], RealEngine], version: str
) -> None:
    engine = start_sglang(version, "tiny-hybrid")
    assert running_limit(engine) == 16  # not the 2,048 that a dense model of this size gets
    prompt, expected = BY_TRANSFORMERS["tiny-hybrid"]
    found = generate(engine, prompt, 24)
    assert [one.usage.completion_tokens for one in found] == [8] * 24
    assert [one.answer.output_ids for one in found] == [expected] * 24
