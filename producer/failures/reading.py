"""The output shards of a run, read no further than needed. Knows the store; not Redis, not statistics.

A shard's metadata tell whether it holds failed or flagged rows. Bodies are read of those that do, and of an
evenly spaced sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from producer.bitmap import Bitmap
from producer.command import with_progress
from producer.failures.groups import Wanted
from producer.failures.sharing import evenly_spaced
from producer.manifests import stored_shards
from producer.parallel import in_order
from producer.shards import stored_metadata
from workers.contract import layout
from workers.contract.errors import ShardCorrupt
from workers.contract.schema import Completion, Manifest, ShardCounts, decode_completions
from workers.object_store import ObjectStore

NOTHING = ShardCounts()

BASELINE_SHARDS = 1000
"""A run of no more (64,000 prompts) is read wholly. Else one row of each: a share of 1/8 is then known to within 0.01."""


@dataclass(frozen=True)
class ShardRead:
    """One output shard. `rows` is None if its body was not read; `error` says why it cannot be."""

    number: int
    in_baseline: bool
    counts: ShardCounts = NOTHING
    rows: list[Completion] | None = None
    error: ShardCorrupt | None = None


def stored_numbers(store: ObjectStore, manifest: Manifest) -> Bitmap:
    """Batches that have an output shard, a bit each.

    Raises:
        StoreUnavailable: The store is away.
    """
    stored = Bitmap(manifest.batches)
    for number, _ in stored_shards(store, manifest):
        if number is not None:
            stored.add(number)
    return stored


def read_shards(
    store: ObjectStore, manifest: Manifest, stored: Bitmap, wanted: Wanted, *, repaired: bool = False
) -> Iterator[ShardRead]:
    """Every stored shard in order; a few are read ahead. If the run is `repaired`, the counts of a shard say less: any failed
    row may fail otherwise now.

    Raises:
        StoreUnavailable: The store stopped answering.
    """

    def read(item: tuple[int, bool]) -> ShardRead:
        return read_shard(store, manifest, *item, replace(wanted, reason=None) if repaired else wanted)

    shards = in_order(read, _chosen(manifest, stored))
    return with_progress(shards, f"failures {manifest.run}: shards", len(stored))


def _chosen(manifest: Manifest, stored: Bitmap) -> Iterator[tuple[int, bool]]:
    """Batch numbers, each with whether it is of the baseline."""
    sample = set(evenly_spaced(len(stored), BASELINE_SHARDS))
    position = 0
    for number in range(manifest.batches):
        if number in stored:
            yield number, position in sample
            position += 1


def read_shard(store: ObjectStore, manifest: Manifest, number: int, in_baseline: bool, wanted: Wanted) -> ShardRead:
    """One output shard; that it cannot be read is told, not raised."""
    key = layout.completions_shard(manifest.run, layout.batch_label(number))
    if not in_baseline:
        try:
            counts = ShardCounts.from_metadata(key, stored_metadata(store, key))
        except ShardCorrupt:  # an S3 server, or a copy, that dropped the metadata: the rows tell the same
            counts = None
        if counts is not None and not wanted.some_in(counts.reasons, counts.flags, counts.failed):
            return ShardRead(number, in_baseline, counts)
    try:
        rows = decode_completions(key, store.get(key) or b"")
    except ShardCorrupt as error:
        return ShardRead(number, in_baseline, error=error)
    return ShardRead(number, in_baseline, ShardCounts.of(rows), rows)
