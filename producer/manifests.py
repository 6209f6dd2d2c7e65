"""Which runs a store holds, and the manifest of one. Does not know Redis."""

from collections.abc import Iterator

from workers.contract import layout, names
from workers.contract.errors import RunUnknown, StoreEmpty
from workers.contract.schema import Manifest, decode_manifest
from workers.store import ObjectInfo, ObjectStore


def find_manifest(store: ObjectStore, run: str) -> Manifest | None:
    """The manifest of a run, or None if the store has none of that name.

    Raises:
        ShardCorrupt: The object is not a manifest.
        ContractMismatch: A later schema.
    """
    if not names.RUN_NAME.fullmatch(names.parse_repair(run)[0]):
        return None
    key = layout.manifest(run)
    body = store.get(key)
    return None if body is None else decode_manifest(key, body)


def read_manifest(store: ObjectStore, run: str) -> Manifest:
    """The manifest of a run.

    Raises:
        RunUnknown: The store has none of that name.
        StoreEmpty: Nor any other.
        ShardCorrupt: The object is not a manifest.
        ContractMismatch: A later schema.
    """
    manifest = find_manifest(store, run)
    if manifest is None:
        raise RunUnknown(run, store.url) if any(run_names(store)) else StoreEmpty(run, store.url)
    return manifest


def run_names(store: ObjectStore) -> Iterator[str]:
    """Names below `runs/`, sorted; a run that is still being enqueued has no manifest yet."""
    for prefix in store.folders(layout.RUNS_PREFIX):
        name = prefix.removeprefix(layout.RUNS_PREFIX).rstrip("/")
        if names.RUN_NAME.fullmatch(name):
            yield name


def stored_shards(store: ObjectStore, manifest: Manifest) -> Iterator[tuple[int | None, ObjectInfo]]:
    """What lies under the completions of a run, from the listing alone.

    Yields:
        The number of the batch (None: the manifest has no such batch) and the object.
    """
    for info in store.list(layout.completions_prefix(manifest.run)):
        number = number_of_key(info.key)
        yield (number if number is not None and number < manifest.batches else None), info


def number_of_key(key: str) -> int | None:
    """Batch number of a shard's key; None for a key that is no shard."""
    label = layout.batch_of_key(key)
    return None if label is None else layout.parse_batch_label(label)
