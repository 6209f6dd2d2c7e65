"""Cut a stream of prompts into batches. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from workers.contract.schema import Prompt


def batches(prompts: Iterable[Prompt], batch_size: int, samples: int = 1) -> Iterator[list[Prompt]]:
    """Batches in order; the samples of a row follow each other.

    Args:
        prompts: One per accepted row.
        batch_size: Prompts in a batch; the last may have fewer.
        samples: How often each row is generated.
    """
    batch: list[Prompt] = []
    for prompt in prompts:
        for sample in range(samples):
            batch.append(msgspec.structs.replace(prompt, sample=sample) if sample else prompt)
            if len(batch) == batch_size:
                yield batch
                batch = []
    if batch:
        yield batch
