"""Prompts and their outcomes, in the order of the source. Knows the store, not the output."""

from collections.abc import Iterator
from dataclasses import dataclass

from producer.findings import belongs, sound
from producer.parallel import in_order
from producer.shards import BatchRead, read_batch
from workers.contract import layout
from workers.contract.errors import RunIncomplete, ShardCorrupt
from workers.contract.schema import Completion, Manifest, Prompt
from workers.object_store import ObjectStore

REMEDY = "one sound outcome for each prompt"


@dataclass(frozen=True)
class Joined:
    """A batch: each prompt with its outcome, or None where there is none yet."""

    label: str
    pairs: list[tuple[Prompt, Completion | None]]
    read_bytes: int


def require_complete(manifest: Manifest, stored: int, missing_prompts: int) -> None:
    """Refuse a run whose shards are not all there.

    Raises:
        RunIncomplete: Prompts have no outcome.
    """
    if stored < manifest.batches:
        raise RunIncomplete(manifest.run, missing_prompts, manifest.prompts)


def joined_batches(store: ObjectStore, manifest: Manifest) -> Iterator[Joined]:
    """All batches in order; a few are read ahead.

    Raises:
        ShardCorrupt: A shard is not what it should be; what is not there yet is no error.
    """
    for read in in_order(lambda number: read_batch(store, manifest, number), range(manifest.batches)):
        yield join(manifest, read)


def join(manifest: Manifest, read: BatchRead) -> Joined:
    """Each prompt of a batch with its one outcome.

    Raises:
        ShardCorrupt: A shard cannot be read, or holds rows that do not fit its prompts; `producer audit` says which.
    """
    for error in (read.input_error, read.output_error):
        if error is not None:
            raise error
    prompts = read.prompts or []
    if read.completions is None:
        return Joined(read.label, [(prompt, None) for prompt in prompts], read.read_bytes)
    outcomes: dict[int, Completion] = {}
    for completion in read.completions:
        if not belongs(completion, prompts) or completion.index in outcomes or not sound(completion):
            raise ShardCorrupt(
                layout.completions_shard(manifest.run, read.label), f"a bad row for prompt {completion.index}", REMEDY
            )
        outcomes[completion.index] = completion
    if len(outcomes) < len(prompts):
        raise ShardCorrupt(
            layout.completions_shard(manifest.run, read.label), f"{len(outcomes)} rows for {len(prompts)} prompts", REMEDY
        )
    return Joined(read.label, [(prompt, outcomes[index]) for index, prompt in enumerate(prompts)], read.read_bytes)
