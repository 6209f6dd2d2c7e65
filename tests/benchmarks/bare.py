"""The bare loops that a worker is measured against, each with the same requests and so many in flight, and nothing else.

`httpx` is what people write: one `httpx.AsyncClient` (over the same transport as the worker's), `post`, `json`. `engine` is the
worker's own client in the same loop, without the judging, keeping and storing that make a worker.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from httpx_aiohttp import HttpxAiohttpClient

from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id

MAX_TOKENS = 100_000
Ask = Callable[[int, str], Awaitable[object]]


async def timed(ask: Ask, prompts: list[str], slots: int) -> float:
    """Ask for every prompt with `slots` in flight; seconds."""
    remaining = iter(enumerate(prompts))

    async def loop() -> None:
        for row, text in remaining:
            await ask(row, text)

    begun = time.monotonic()
    await asyncio.gather(*(loop() for _ in range(slots)))
    return time.monotonic() - begun


async def with_httpx(url: str, prompts: list[str], slots: int) -> float:
    """The loop that people write."""
    limits = httpx.Limits(max_connections=slots)
    async with HttpxAiohttpClient(timeout=None, limits=limits) as client:

        async def ask(row: int, text: str) -> object:
            body = {"text": text, "sampling_params": {"max_new_tokens": MAX_TOKENS}, "rid": new_request_id()}
            response = await client.post(f"{url}/generate", json=body)
            response.raise_for_status()
            return response.json()["text"]

        return await timed(ask, prompts, slots)


async def with_engine(url: str, prompts: list[str], slots: int) -> float:
    """The worker's client alone."""
    sampling = Sampling(max_tokens=MAX_TOKENS)
    async with Engine(url) as engine:

        async def ask(row: int, text: str) -> object:
            return await engine.generate(Prompt(id=row, row=row, text=text), sampling, new_request_id())

        return await timed(ask, prompts, slots)


KINDS = {"httpx": with_httpx, "engine": with_engine}

if __name__ == "__main__":  # in a process of its own, as a worker is
    kind, engine_url, source, count = sys.argv[1:5]
    texts = [json.loads(line)["prompt"] for line in Path(source).read_text().splitlines()]
    print(asyncio.run(KINDS[kind](engine_url, texts, int(count))))  # noqa: T201
