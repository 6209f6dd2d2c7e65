"""Prompts and the outcomes that count, in the order of the source. Knows the store, not the output."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from producer.findings import belongs, sound
from producer.manifests import stored_shards
from producer.parallel import in_order
from producer.repairs import Layer, Outcome, laid_over
from producer.shards import BatchRead, read_batch
from workers.contract import layout, names
from workers.contract.errors import RunIncomplete, ShardCorrupt
from workers.contract.schema import Completion, Manifest
from workers.object_store import ObjectStore

REMEDY = "one sound outcome for each prompt"


@dataclass(frozen=True)
class Joined:
    """A batch: each prompt with the outcome that counts, None where there is none yet. `pending`: a repair will replace it."""

    outcomes: list[tuple[Outcome, bool]]
    read_bytes: int


def require_complete(store: ObjectStore, manifest: Manifest, repairs: Sequence[Manifest]) -> None:
    """Refuse a run whose shards are not all there, from the listings alone.

    Raises:
        RunIncomplete: Prompts have no outcome, or wait for a new one.
    """
    missing = 0
    for part in (manifest, *repairs):
        answered = sum(part.prompts_in(number) for number, _ in stored_shards(store, part) if number is not None)
        missing += part.prompts - answered
    if missing:
        raise RunIncomplete(manifest.run, missing, manifest.prompts)


def joined_batches(store: ObjectStore, manifest: Manifest, repairs: Sequence[Manifest] = ()) -> Iterator[Joined]:
    """All batches of a run in order, with its repairs laid over them; a few batches of each are read ahead.

    Raises:
        ShardCorrupt: A shard is not what it should be; what is not there yet is no error.
    """
    layers = [Layer(outcomes_of(store, repair)) for repair in repairs]
    for read in _read(store, manifest):
        yield Joined(list(laid_over(join(manifest, read), layers)), read.read_bytes)


def outcomes_of(store: ObjectStore, manifest: Manifest) -> Iterator[Outcome]:
    """All prompts of one run or repair with their outcomes, without what replaces them.

    Raises:
        ShardCorrupt: See `joined_batches`.
    """
    for read in _read(store, manifest):
        yield from join(manifest, read)


def _read(store: ObjectStore, manifest: Manifest) -> Iterator[BatchRead]:
    return in_order(lambda number: read_batch(store, manifest, number), range(manifest.batches))


def join(manifest: Manifest, read: BatchRead) -> list[Outcome]:
    """Each prompt of a batch with its one outcome.

    Raises:
        ShardCorrupt: A shard cannot be read, or holds rows that do not fit its prompts; `producer audit` says which.
    """
    for error in (read.input_error, read.output_error):
        if error is not None:
            raise error
    prompts, batch = read.prompts or [], batch_name(manifest, read.label)
    if read.completions is None:
        return [Outcome(prompt, None, batch) for prompt in prompts]
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
    return [Outcome(prompt, outcomes[index], batch) for index, prompt in enumerate(prompts)]


def batch_name(manifest: Manifest, label: str) -> str:
    """`00000012`, or `r01-00000012` in a repair."""
    number = names.parse_repair(manifest.run)[1]
    return label if number is None else f"r{number:02d}-{label}"
