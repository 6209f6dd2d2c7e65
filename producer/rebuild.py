"""Compute what Redis knows of a run anew from the store, while workers may be at work on it.

The store is read first, without any lock on Redis; then one atomic script replaces bitmaps, counters and state. What was
committed between the two shows as a done batch that the listing did not have: the script then changes nothing and names it,
it is looked up, and the script runs again. A batch whose shard is stored but not committed yet becomes done, and its
checkpoints go: the worker's own commit then changes nothing. Pushes no message, and calls only those batches pushed that wait
in the queue or are leased: the sweep must not take for lost what `resume` is about to push.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import redis

from producer.bitmap import Bitmap
from producer.command import with_progress
from producer.manifests import stored_shards
from producer.parallel import in_order
from producer.publish import note_repairs, state_fields
from producer.queue_state import taken_care_of
from producer.repairs import last_number
from producer.shards import stored_metadata
from workers.broker import broker_errors
from workers.contract import layout, names
from workers.contract.errors import ShardCorrupt
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest, ShardCounts, check_size, decode_completions
from workers.contract.settings import FleetSettings
from workers.store import ObjectInfo, ObjectStore

_SCRIPT = (Path(__file__).parent / "rebuild.lua").read_text()
_STALE = 1
OnHold = Literal["keep", "lift"]


@dataclass(frozen=True)
class Rebuilt:
    """What Redis knows now. `corrupt`: batch → why its output shard cannot be read; no worker takes these."""

    run: str
    status: str
    status_before: str | None
    total: int
    completed: int
    failed: int
    batches: int
    done: Bitmap
    open_batches: int
    corrupt: dict[str, str]

    def sentence(self) -> str:
        """For people, one line."""
        pending = self.total - self.completed - self.failed
        return (
            f"{self.completed:,} completed, {self.failed:,} failed, {pending:,} pending; "
            f"{len(self.done):,} of {self.batches:,} batches done, status {self.status}"
        )

    def as_document(self) -> dict[str, object]:
        """For scripts."""
        return {
            "status": self.status,
            "status_before": self.status_before,
            "total": self.total,
            "completed": self.completed,
            "failed": self.failed,
            "pending": self.total - self.completed - self.failed,
            "batches": self.batches,
            "already_done": len(self.done),
            "open_batches": self.open_batches,
        }


@dataclass
class _Found:
    """Sums over the shards that were read so far."""

    manifest: Manifest
    done: Bitmap
    not_stored: Bitmap
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    corrupt: dict[str, str] = field(default_factory=dict)

    def add(self, number: int, size_bytes: int, shard: ShardCounts | ShardCorrupt) -> None:
        if isinstance(shard, ShardCorrupt):
            self.corrupt[layout.batch_label(number)] = str(shard)
            self.not_stored.add(number)
            return
        self.done.add(number)
        for name in ("completed", "failed", "prompt_tokens", "completion_tokens"):
            self.counts[name] += getattr(shard, name)
        self.counts.update(batches=1, shards=1, shard_bytes=size_bytes)
        self.reasons.update(shard.reasons)
        self.flags.update(shard.flags)

    def plan(self, on_hold: OnHold, store_url: str) -> bytes:
        manifest = self.manifest
        state = state_fields(manifest) | {"store": store_url}
        wanted = ("completed", "failed", "prompt_tokens", "completion_tokens", "batches", "shards", "shard_bytes")
        return msgspec.json.encode(
            {
                "counts": {name: self.counts[name] for name in wanted},
                "reasons": self.reasons,
                "flags": self.flags,
                "parked": self.corrupt,
                "state": {name: str(value) for name, value in state.items()},
                "complete": len(self.done) == manifest.batches,
                "lift": on_hold == "lift",
                "finished_ttl_s": round(names.FINISHED_TTL_S),
            }
        )


def rebuild_all(
    store: ObjectStore, client: "redis.Redis", settings: FleetSettings, manifest: Manifest, repairs: Sequence[Manifest]
) -> list[Rebuilt]:
    """`rebuild` of a run, then of each of its repairs; a run or repair on hold stays so."""
    rebuilt = [rebuild(store, client, settings, part) for part in (manifest, *repairs)]
    note_repairs(client, manifest, last_number(repairs))
    return rebuilt


def rebuild(
    store: ObjectStore,
    client: "redis.Redis",
    settings: FleetSettings,
    manifest: Manifest,
    on_hold: OnHold = "keep",
) -> Rebuilt:
    """Replace state, counters and bitmaps of a run by what the store says. Safe to repeat at any moment.

    Args:
        store: Of the run.
        client: From `workers.broker.connect`.
        settings: For messages.
        manifest: Of the run.
        on_hold: `keep` leaves a paused or cancelled run and its parked batches so; `lift` makes it run again.

    Raises:
        BrokerUnavailable: Redis is away; nothing was changed, or all.
        StoreUnavailable: The store is away; nothing was changed.
    """
    found = _Found(manifest, Bitmap(manifest.batches), Bitmap(manifest.batches))
    listed = ((number, info) for number, info in stored_shards(store, manifest) if number is not None)
    shards = in_order(lambda item: _counted(store, *item), listed)
    for number, size_bytes, shard in with_progress(shards, f"rebuild {manifest.run}: shards", manifest.batches):
        found.add(number, size_bytes, shard)
    with broker_errors(settings):
        client.zadd(names.RUNS, {manifest.run: manifest.created_at})
        answer = _swapped(store, client, found, on_hold)
        status_before, status = answer[1].decode() or None, answer[2].decode()
        if status == "complete":
            client.zrem(names.RUNS, manifest.run)
        else:  # a worker's beat may have taken it out while it was complete or cancelled
            client.zadd(names.RUNS, {manifest.run: manifest.created_at})
    return Rebuilt(
        run=manifest.run,
        status=status,
        status_before=status_before,
        total=manifest.prompts,
        completed=int(answer[3]),
        failed=int(answer[4]),
        batches=manifest.batches,
        done=found.done,
        open_batches=int(answer[7]),
        corrupt=found.corrupt,
    )


def _swapped(store: ObjectStore, client: "redis.Redis", found: _Found, on_hold: OnHold) -> list[Any]:
    manifest = found.manifest
    keys = RunKeys(manifest.run)
    named = [keys.state, keys.done, keys.pushed, keys.counts, keys.reasons, keys.flags, keys.series, keys.open, keys.parked]
    named.append(keys.lease)
    named += [key for key in keys.lasting() if key not in named]
    script = client.register_script(_SCRIPT)
    waiting = Bitmap(manifest.batches)
    for number in taken_care_of(client, manifest.run)[0]:
        if number < manifest.batches:
            waiting.add(number)
    while True:  # each round has at least one batch less to look up, and there are as many as the run has
        arguments: list[bytes | str] = [
            found.done.body(),
            found.not_stored.body(),
            found.plan(on_hold, store.url),
            keys.checkpoints(""),
            waiting.body(),
        ]
        answer = cast("list[Any]", script(keys=named, args=arguments))
        if answer[0] != _STALE:
            return answer
        for number, size_bytes, shard in _looked_up(store, manifest, (int(number) for number in answer[1:])):
            if shard is None:
                found.not_stored.add(number)
            else:
                found.add(number, size_bytes, shard)


def _looked_up(
    store: ObjectStore, manifest: Manifest, numbers: Iterable[int]
) -> Iterator[tuple[int, int, ShardCounts | ShardCorrupt | None]]:
    def look_up(number: int) -> tuple[int, int, ShardCounts | ShardCorrupt | None]:
        info = store.head(layout.completions_shard(manifest.run, layout.batch_label(number)))
        return (number, 0, None) if info is None else _counted(store, number, info)

    return in_order(look_up, numbers)


def _counted(store: ObjectStore, number: int, info: ObjectInfo) -> tuple[int, int, ShardCounts | ShardCorrupt]:
    metadata = stored_metadata(store, info.key)
    try:
        check_size(info.key, info.size_bytes, metadata)
        return number, info.size_bytes, _counts(store, info.key, metadata)
    except ShardCorrupt as error:
        return number, info.size_bytes, error


def _counts(store: ObjectStore, key: str, metadata: dict[str, str]) -> ShardCounts:
    try:
        return ShardCounts.from_metadata(key, metadata)
    except ShardCorrupt:  # an S3 server, or a copy, that dropped the metadata: the rows tell the same
        return ShardCounts.of(decode_completions(key, store.get(key) or b""))
