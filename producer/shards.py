"""One batch as the store holds it: its prompts, its outcomes, and what is wrong with either. Does not know Redis."""

from dataclasses import dataclass

from workers.contract import layout
from workers.contract.errors import ShardCorrupt
from workers.contract.schema import (
    Completion,
    Manifest,
    Prompt,
    ShardCounts,
    check_digest,
    decode_completions,
    decode_prompts,
    shard_digest,
)
from workers.object_store import ObjectStore


@dataclass(frozen=True)
class BatchRead:
    """What was found. `prompts` is None if the input shard cannot be trusted, and `input_error` says why.

    `completions` is None if there is no output shard, or if it cannot be read (`output_error`). `told` are the counts in the
    metadata of the output shard; None if they cannot be read (`told_error`).
    """

    number: int
    label: str
    expected: int
    prompts: list[Prompt] | None = None
    input_error: ShardCorrupt | None = None
    completions: list[Completion] | None = None
    output_error: ShardCorrupt | None = None
    told: ShardCounts | None = None
    told_error: ShardCorrupt | None = None
    read_bytes: int = 0


def read_prompts(store: ObjectStore, manifest: Manifest, number: int) -> tuple[list[Prompt], int]:
    """Prompts of a batch in order, and the bytes of their shard.

    Raises:
        ShardCorrupt: The shard is missing, or not the one of the manifest.
    """
    key = layout.input_shard(manifest.run, layout.batch_label(number))
    body = check_input(store, manifest, number)
    prompts = decode_prompts(key, body)
    if len(prompts) != manifest.prompts_in(number):
        raise ShardCorrupt(key, f"{len(prompts)} prompts", f"{manifest.prompts_in(number)} prompts")
    return prompts, len(body)


def check_input(store: ObjectStore, manifest: Manifest, number: int) -> bytes:
    """The input shard of a batch, proven to be the one of the manifest.

    Raises:
        ShardCorrupt: It is missing, or has another digest.
    """
    key = layout.input_shard(manifest.run, layout.batch_label(number))
    body = store.get(key)
    if body is None:
        raise ShardCorrupt(key, "nothing", "an input shard")
    found, expected = shard_digest(body), manifest.digest_of(number)
    if found != expected:
        raise ShardCorrupt(key, f"digest {found}", f"digest {expected}")
    return body


def read_batch(store: ObjectStore, manifest: Manifest, number: int) -> BatchRead:
    """Both shards of a batch; nothing that is wrong with them is raised.

    Args:
        store: Of the run.
        manifest: Of the run.
        number: Of the batch, 0-based.
    """
    label = layout.batch_label(number)
    prompts, input_error, input_bytes = None, None, 0
    try:
        prompts, input_bytes = read_prompts(store, manifest, number)
    except ShardCorrupt as error:
        input_error = error
    output = _read_output(store, layout.completions_shard(manifest.run, label))
    return BatchRead(
        number,
        label,
        manifest.prompts_in(number),
        prompts,
        input_error,
        output.completions,
        output.error,
        output.told,
        output.told_error,
        input_bytes + output.read_bytes,
    )


@dataclass
class _Output:
    completions: list[Completion] | None = None
    error: ShardCorrupt | None = None
    told: ShardCounts | None = None
    told_error: ShardCorrupt | None = None
    read_bytes: int = 0


def _read_output(store: ObjectStore, key: str) -> _Output:
    read = _Output()
    try:
        found = store.get_with_metadata(key)
    except ShardCorrupt as error:
        read.error = error
        return read
    if found is None:
        return read
    body, metadata = found
    read.read_bytes = len(body)
    try:
        check_digest(key, body, metadata)
        read.completions = decode_completions(key, body)
    except ShardCorrupt as error:
        read.error = error
    try:
        read.told = ShardCounts.from_metadata(key, dict(metadata))
    except ShardCorrupt as error:
        read.told_error = error
    return read


def stored_metadata(store: ObjectStore, key: str) -> dict[str, str]:
    """What a worker told of an output shard beside its rows; empty if it told nothing."""
    info = store.head(key)
    return dict(info.metadata) if info else {}


def prompt_name(prompt: Prompt | Completion, samples: int) -> str:
    """The id as text; `id#k` when a row has several samples."""
    return f"{prompt.id}#{prompt.sample}" if samples > 1 else str(prompt.id)
