"""Write the input shards of a run while its source is read, then its rejects. Knows no Redis."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import zstandard

from producer.batching import batches
from producer.parallel import in_order
from producer.scratch import scratch_folder
from producer.sources.rejects import Reject
from producer.sources.stream import SourceStream
from workers.contract import layout
from workers.contract.schema import Prompt, encode_shard, shard_digest
from workers.object_store import ObjectStore

UPLOADERS = 8
REJECTS_SHOWN = 5


@dataclass
class Uploaded:
    """What the store holds for a run that has no manifest yet."""

    shard_digests: str
    batches: int
    first_rejects: list[Reject]


def upload(
    store: ObjectStore,
    run: str,
    stream: SourceStream,
    batch_size: int,
    samples: int,
    on_row: Callable[[], None],
    check_lock: Callable[[], None],
) -> Uploaded:
    """Read the stream to its end, and write its shards and rejects.

    A shard that an interrupted enqueue left is kept if it is the same, else replaced: without a manifest nobody reads it.

    Raises:
        SourceUnreadable: Part of the source cannot be read.
        StoreUnavailable: What was written stays, and the next try finds it.
        ScratchUnusable: So it does then.
    """
    first: list[Reject] = []
    with scratch_folder() as folder:
        path = folder / "rejected.jsonl.zst"
        with path.open("wb") as file, zstandard.ZstdCompressor(level=3).stream_writer(file) as rejected:

            def accepted() -> Iterator[Prompt]:
                for outcome in stream:
                    on_row()
                    if isinstance(outcome, Prompt):
                        yield outcome
                        continue
                    if len(first) < REJECTS_SHOWN:
                        first.append(outcome)
                    rejected.write(msgspec.json.encode(outcome) + b"\n")

            digests = write_shards(store, run, batches(accepted(), batch_size, samples), check_lock)
        check_lock()
        if stream.rejected:
            store.put_file(layout.rejected(run), path)
        else:
            store.delete(layout.rejected(run))
    return Uploaded("".join(digests), len(digests), first)


def write_shards(store: ObjectStore, run: str, batched: Iterable[list[Prompt]], check_lock: Callable[[], None]) -> list[str]:
    """Write the input shards of a run that has no manifest yet, several at a time, and remove what lies beyond them.

    Returns:
        The digest of each.
    """

    def write(numbered: tuple[int, list[Prompt]]) -> str:
        number, prompts = numbered
        key = layout.input_shard(run, layout.batch_label(number))
        return _write_shard(store, key, encode_shard(prompts), check_lock)

    digests = list(in_order(write, enumerate(batched), UPLOADERS))
    check_lock()
    _remove_beyond(store, run, len(digests))
    return digests


def _write_shard(store: ObjectStore, key: str, body: bytes, check_lock: Callable[[], None]) -> str:
    digest = shard_digest(body)
    if not store.put_new(key, body) and store.get(key) != body:
        check_lock()  # a producer that was paused for long must not write over what another has made meanwhile
        store.put(key, body)
    return digest


def _remove_beyond(store: ObjectStore, run: str, count: int) -> None:
    for info in store.list(layout.inputs_prefix(run)):
        label = layout.batch_of_key(info.key)
        if label is not None and label >= layout.batch_label(count):
            store.delete(info.key)
