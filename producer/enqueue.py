"""`producer enqueue` without its command line: from a source to a run whose batches are all pushed. Safe to repeat.

A run exists from the moment its manifest is in the store. Before, an interrupted enqueue leaves shards that the next one finds;
after, the same command pushes what is missing, and another one under the same name is refused.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

import redis
import structlog

from producer.manifests import find_manifest
from producer.publish import DEFAULT_MAX_QUEUED, Backpressure, done_batches, push_missing, repairs_noted, settle, tell_state
from producer.resume import resume_all
from producer.run_lock import LockLost, RunBusy, RunLock, run_lock
from producer.sources.lines import source_name
from producer.sources.rejects import Reject
from producer.sources.stream import SourceStream
from producer.upload import REJECTS_SHOWN, Uploaded, upload
from workers.broker import broker_errors
from workers.celery import make_app
from workers.contract import layout, names
from workers.contract.errors import FleetError, RowRejected, RunDiffers, RunLeftovers, SourceUnreadable
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest, Prompt, Sampling, encode_manifest
from workers.contract.settings import FleetSettings
from workers.object_store import ObjectStore

BUSY_AGAIN_S = 1.0
BUSY_FOR_S = 6 * 3600.0

log = structlog.get_logger()


@dataclass(frozen=True)
class Order:
    """What is to be enqueued, and how."""

    run: str
    sources: tuple[str, ...]
    sampling: Sampling
    model: str | None = None
    batch_size: int = 64
    samples: int = 1
    limit: int | None = None
    priority: int = names.DEFAULT_PRIORITY
    max_queued: int = DEFAULT_MAX_QUEUED
    strict: bool = False


@dataclass
class Watcher:
    """Told of progress; the command draws it."""

    stream: Callable[[SourceStream, str], None] = lambda stream, what: None
    row: Callable[[], None] = lambda: None
    pushing: Callable[[int], None] = lambda total: None
    pushed: Callable[[int], None] = lambda count: None
    waiting: Callable[[str], None] = lambda sentence: None


@dataclass
class Enqueued:
    """What became of an order."""

    manifest: Manifest
    pushed: int
    already_done: int
    status: str
    first_rejects: list[Reject] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """For scripts: DESIGN §10."""
        manifest = self.manifest
        return {
            "run": manifest.run,
            "accepted": manifest.accepted,
            "rejected": manifest.rejected,
            "reasons": manifest.reject_reasons,
            "ignored_fields": self.ignored,
            "batches": manifest.batches,
            "prompts": manifest.prompts,
            "pushed": self.pushed,
            "already_done": self.already_done,
            "status": self.status,
        }


def enqueue(order: Order, store: ObjectStore, client: "redis.Redis", settings: FleetSettings, watcher: Watcher) -> Enqueued:
    """Enqueue a run, or finish what an earlier call began.

    Raises:
        SourceUnreadable, RowRejected: Nothing was enqueued.
        RunDiffers: The run exists with something else; names the field.
        BrokerUnavailable, StoreUnavailable, StoreDenied: The same command goes on from here.
    """
    with broker_errors(settings):
        client.ping()
        if order.strict:
            _refuse_rejects(order, watcher)
        enqueued = _under_lock(order, store, client, settings, watcher)
        if enqueued is not None:
            return enqueued
        # Redis forgot a run that the store knows: rebuild it, and push what no worker and no queue has.
        manifest = find_manifest(store, order.run)
        if manifest is None:
            raise SourceUnreadable(order.run, "the run disappeared from the store meanwhile")
        resumed = resume_all(store, client, settings, manifest, check_inputs=False)[0]
        return Enqueued(manifest, resumed.pushed.pushed, len(resumed.rebuilt.done), resumed.rebuilt.status)


def _under_lock(
    order: Order, store: ObjectStore, client: "redis.Redis", settings: FleetSettings, watcher: Watcher
) -> Enqueued | None:
    ends = time.monotonic() + BUSY_FOR_S
    while True:
        try:
            with run_lock(client, order.run) as lock:
                return _enqueue(order, store, client, settings, watcher, lock)
        except RunBusy as error:
            if time.monotonic() > ends:
                raise
            watcher.waiting(str(error))
            time.sleep(BUSY_AGAIN_S)


def _refuse_rejects(order: Order, watcher: Watcher) -> None:
    if "-" in order.sources:
        raise SourceUnreadable("-", "--strict reads the source twice, which standard input does not allow; give a file")
    stream = SourceStream(order.sources, order.limit)
    watcher.stream(stream, "checking")
    first: Reject | None = None
    for outcome in stream:
        watcher.row()
        first = first or (outcome if isinstance(outcome, Reject) else None)
    if first is not None:
        raise RowRejected(stream.rejected, stream.accepted, first.sentence())


def _enqueue(
    order: Order, store: ObjectStore, client: "redis.Redis", settings: FleetSettings, watcher: Watcher, lock: RunLock
) -> Enqueued | None:
    keys = RunKeys(order.run)
    manifest = find_manifest(store, order.run)
    rejects: list[Reject] = []
    stream = SourceStream(order.sources, order.limit)
    if manifest is None:
        _refuse_another_stores_run(client, keys, store.url)
        _forget(client, keys)  # what an earlier run of this name left: its manifest is gone, so nothing of it is true
        client.hset(keys.state, mapping={"status": "enqueueing", "store": store.url})
        client.zadd(names.RUNS, {order.run: time.time()}, nx=True)
        watcher.stream(stream, "reading")
        try:
            manifest, rejects = _create(order, store, stream, watcher, lock)
        except BaseException:  # there is no run, so nothing may say that one is being enqueued
            with contextlib.suppress(redis.RedisError, LockLost):
                lock.check()  # else another producer is at it
                if not _begun(store, order.run):
                    _forget(client, keys)
            raise
    else:
        compare(order, manifest)
        watcher.stream(stream, "comparing")
        rejects = _compare_source(stream, manifest, watcher)
        if not client.exists(keys.state):
            return None
    tell_state(client, manifest, store.url)
    watcher.pushing(manifest.batches)
    done = done_batches(client, manifest)
    with make_app(settings) as app:
        pressure = Backpressure(order.max_queued)
        pushed = push_missing(app, client, settings, manifest, pressure, watcher.pushed, watcher.waiting)
    status = settle(client, keys)
    return Enqueued(manifest, pushed, done, status, rejects, dict(stream.ignored)) if status else None  # Redis was emptied


def _refuse_another_stores_run(client: "redis.Redis", keys: RunKeys, store_url: str) -> None:
    """A run that is under way under this name, from another store, must not lose its counters to a mistyped FLEET_STORE."""
    status, known = cast("list[bytes | None]", client.hmget(keys.state, "status", "store"))
    if known is not None and known.decode() != store_url and status not in {None, b"complete"}:
        raise RunDiffers(keys.run, "FLEET_STORE", store_url, known.decode())


def _begun(store: ObjectStore, run: str) -> bool:
    """Whether shards lie in the store, as far as it tells: then the same command goes on from there."""
    try:
        return any(True for _ in store.list(layout.inputs_prefix(run)))
    except FleetError:
        return False


def _forget(client: "redis.Redis", keys: RunKeys) -> None:
    for number in range(1, repairs_noted(client, keys) + 1):
        _forget(client, RunKeys(names.repair_name(keys.run, number)))
    for batch in cast("set[bytes]", client.smembers(keys.open)):
        client.delete(keys.checkpoints(batch.decode()))
    client.delete(*keys.lasting(), keys.beat)
    client.zrem(names.RUNS, keys.run)


def _create(
    order: Order, store: ObjectStore, stream: SourceStream, watcher: Watcher, lock: RunLock
) -> tuple[Manifest, list[Reject]]:
    for info in store.list(layout.completions_prefix(order.run)):
        raise RunLeftovers(order.run, store.url, info.key)
    uploaded = upload(store, order.run, stream, order.batch_size, order.samples, watcher.row, lock.check)
    lock.check()
    if not uploaded.batches:
        store.delete(layout.rejected(order.run))
        first = f", the first: {uploaded.first_rejects[0].sentence()}" if uploaded.first_rejects else ""
        cause = f"no row could be accepted ({stream.rejected} rejected{first}); expected JSON lines, an object in each"
        raise SourceUnreadable(", ".join(order.sources), cause)
    manifest = manifest_of(order, stream, uploaded)
    body = encode_manifest(manifest)
    if not store.put_new(layout.manifest(order.run), body) and store.get(layout.manifest(order.run)) != body:
        raise RunDiffers(order.run, "manifest", "a new one", "one that appeared meanwhile")
    return manifest, uploaded.first_rejects


def manifest_of(order: Order, stream: SourceStream, uploaded: Uploaded) -> Manifest:
    """The manifest of an order whose source was read to its end."""
    return Manifest(
        run=order.run,
        created_at=round(time.time(), 3),
        sources=tuple(map(source_name, order.sources)),
        source_sha256=stream.sha256,
        source_bytes=stream.bytes_read,
        accepted=stream.accepted,
        rejected=stream.rejected,
        reject_reasons=dict(stream.reasons),
        prompts=stream.accepted * order.samples,
        batches=uploaded.batches,
        batch_size=order.batch_size,
        samples=order.samples,
        sampling=order.sampling,
        shard_digests=uploaded.shard_digests,
        limit=order.limit,
        model=order.model,
        priority=order.priority,
        producer_version=version("promptfleet"),
    )


def compare(order: Order, manifest: Manifest) -> None:
    """Hold an order against the run of that name.

    Raises:
        RunDiffers: Names the first field that differs.
    """
    for name in order.sampling.__struct_fields__:
        found, expected = getattr(order.sampling, name), getattr(manifest.sampling, name)
        if found != expected:
            raise RunDiffers(order.run, name, _shown(found), _shown(expected))
    for name in ("model", "batch_size", "samples", "limit", "priority"):
        found, expected = getattr(order, name), getattr(manifest, name)
        if found != expected:
            raise RunDiffers(order.run, name, _shown(found), _shown(expected))


def _shown(value: object) -> object:
    return "nothing" if value is None else list(value) if isinstance(value, tuple) else value


def _compare_source(stream: SourceStream, manifest: Manifest, watcher: Watcher) -> list[Reject]:
    rejects: list[Reject] = []
    for outcome in stream:
        watcher.row()
        if not isinstance(outcome, Prompt) and len(rejects) < REJECTS_SHOWN:
            rejects.append(outcome)
    if stream.sha256 != manifest.source_sha256:
        raise RunDiffers(
            manifest.run,
            "source",
            f"{stream.accepted} rows accepted, sha256 {stream.sha256[:12]}…",
            f"{manifest.accepted} rows accepted, sha256 {manifest.source_sha256[:12]}…",
        )
    return rejects
