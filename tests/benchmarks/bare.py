"""The bare loop that a worker is measured against: the same HTTP client, the same requests, nothing else."""

import asyncio
import json
import sys
import time
from pathlib import Path

from workers.contract.schema import Prompt, Sampling
from workers.engine import Engine, new_request_id


async def run(url: str, prompts: list[str], slots: int) -> float:
    """Generate every prompt with `slots` in flight; seconds."""
    sampling = Sampling(max_tokens=100_000)
    remaining = iter(enumerate(prompts))
    async with Engine(url) as engine:

        async def loop() -> None:
            for row, text in remaining:
                await engine.generate(Prompt(id=row, row=row, text=text), sampling, new_request_id())

        begun = time.monotonic()
        await asyncio.gather(*(loop() for _ in range(slots)))
        return time.monotonic() - begun


if __name__ == "__main__":  # in a process of its own, as a worker is
    engine_url, source, count = sys.argv[1:4]
    texts = [json.loads(line)["prompt"] for line in Path(source).read_text().splitlines()]
    print(asyncio.run(run(engine_url, texts, int(count))))  # noqa: T201
