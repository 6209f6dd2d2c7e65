"""The small models on the real SGLang: known tokens, and a running limit that comes from state slots."""

import asyncio
from collections.abc import Callable

import pytest

from tests.sglang.conftest import RealEngine
from workers.answers import Generated
from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]

PROMPT = (72, 100, 200, 33, 45, 60)
GREEDY = Sampling(max_tokens=8, temperature=0.0)
BY_TRANSFORMERS = {
    "tiny-qwen3": (218, 386, 411, 197, 363, 397, 141, 489),
    "tiny-hybrid": (238, 16, 402, 158, 263, 134, 472, 106),
}
"""What transformers' own `generate` gives for the same weights and prompt."""


def generate(engine: RealEngine, count: int) -> list[Generated]:
    async def all_at_once() -> list[Generated]:
        async with Engine(engine.url) as client:
            prompts = (Prompt(id="p", row=row, input_ids=PROMPT) for row in range(count))
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
    (found,) = generate(engine, 1)
    assert found.answer.output_ids == BY_TRANSFORMERS["tiny-qwen3"]
    assert (found.finish, found.usage.prompt_tokens, found.usage.completion_tokens) == ("length", 6, 8)


def test_a_hybrid_model_runs_what_its_limit_says_and_queues_the_rest(
    start_sglang: Callable[[str, str], RealEngine], version: str
) -> None:
    engine = start_sglang(version, "tiny-hybrid")
    assert running_limit(engine) == 16  # not the 2,048 that a dense model of this size gets
    found = generate(engine, 24)
    assert [one.usage.completion_tokens for one in found] == [8] * 24
    # On 0.5.23 the stand-in kernels part from transformers after four tokens; see ops/engines/cpu/inside/stubs.
    same = 8 if version == "0.5.11" else 4
    for one in found:
        assert one.answer.output_ids is not None
        assert one.answer.output_ids[:same] == BY_TRANSFORMERS["tiny-hybrid"][:same]
