"""A worker's way to the store: manifests, input shards, output shards. Knows no batch's state.

The store blocks, so its calls run in threads. What may pass is waited for (bounded), and told while it is; what is not as it
was written is read a few times more, since a transfer may have spoiled it; what stays so is raised.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
    wait_random_exponential,
)

from workers.contract import layout
from workers.contract.errors import RunElsewhere, ShardCorrupt, StoreDenied, StoreUnavailable
from workers.contract.schema import (
    BatchMessage,
    Completion,
    Manifest,
    Prompt,
    ShardCounts,
    check_size,
    decode_completions,
    decode_manifest,
    decode_prompts,
    encode_shard,
    shard_digest,
)
from workers.store import ObjectStore

STORE_RETRY_FOR_S = 6 * 3600.0
"""A store may be away for a night; finished answers are kept meanwhile."""
SLOW_AFTER_S = 10.0
"""A store that takes connections and does not answer is told after so long; each try ends later, by its own timeout."""
READS = 4
"""Of an object that is missing or not as it was written, over some seconds: parking its batch takes a person to undo."""
MANIFESTS_KEPT = 8
MAX_UNWRITTEN = 16
"""Finished batches that may wait for the store before a worker takes no more: a thousand answers, some megabytes."""

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True)
class StoredShard:
    """What the store holds for a batch, whoever wrote it."""

    counts: ShardCounts
    shard_bytes: int


class ShardRoom:
    """Reads and writes shards for one worker.

    `unwritten` counts finished batches on their way to the store.
    `last_write_s` is how long the last write took, with its waits; None before the first.
    """

    def __init__(self, store: ObjectStore, threads: ThreadPoolExecutor) -> None:
        self.store = store
        self._threads = threads
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._causes: dict[object, str] = {}
        self.unwritten = 0
        self.last_write_s: float | None = None

    @property
    def cause(self) -> str:
        """Why the store is waited for, by the call that has waited longest; empty if none waits."""
        return next(iter(self._causes.values()), "")

    async def manifest(self, run: str, made: float = 0.0) -> Manifest:
        """The manifest of a run, from memory after the first time; read again if it is not the one that was `made` then.

        Raises:
            RunElsewhere: It is not there.
            ShardCorrupt: It is none.
        """
        if run not in self._manifests or (made and self._manifests[run].created_at != made):
            self._manifests[run] = await self._sound(layout.manifest(run), lambda: self._read_manifest(run))
            while len(self._manifests) > MANIFESTS_KEPT:
                self._manifests.popitem(last=False)
        self._manifests.move_to_end(run)
        return self._manifests[run]

    async def message(self, run: str, batch: str) -> tuple[BatchMessage, int]:
        """The claim check of a batch, made anew, and its run's priority."""
        manifest = await self.manifest(run)
        parsed = layout.parse_batch_label(batch)
        if parsed is None:
            raise ShardCorrupt(layout.input_shard(run, batch), f"batch {batch!r}", "an eight-digit number")
        return manifest.message_of(parsed), manifest.priority

    async def prompts(self, message: BatchMessage) -> list[Prompt]:
        """Prompts of a batch, in order.

        Raises:
            ShardCorrupt: The shard is missing, or not the one that the message names.
        """
        key = layout.input_shard(message.run, message.batch)
        return await self._sound(key, lambda: self._read_prompts(key, message.digest))

    async def stored(self, run: str, batch: str) -> StoredShard | None:
        """What the store holds of a batch already: Redis may have forgotten that it is done.

        Raises:
            ShardCorrupt: It is not as long as its worker wrote it.
        """
        key = layout.completions_shard(run, batch)
        return await self._sound(key, lambda: self._stored(key))

    async def write(self, run: str, batch: str, outcomes: Sequence[Completion]) -> StoredShard:
        """Write the output shard, once.

        Returns:
            What the store holds now: this shard, or the one that another worker wrote before.
        """
        key = layout.completions_shard(run, batch)
        self.unwritten += 1
        try:
            body = await self._in_thread(lambda: encode_shard(outcomes))
            counts = ShardCounts.of(outcomes)
            begun = time.monotonic()
            is_ours = await self._waiting(f"write {key}", lambda: self.store.put_new(key, body, counts.to_metadata(body)))
            self.last_write_s = time.monotonic() - begun
            if is_ours:
                return StoredShard(counts, len(body))
            log.info("shard.exists", run=run, batch=batch)
            return await self._sound(key, lambda: self._surely_stored(key))
        finally:
            self.unwritten -= 1

    def _read_manifest(self, run: str) -> Manifest:
        key = layout.manifest(run)
        body = self.store.get(key)
        if body is None:
            raise RunElsewhere(run, self.store.url)
        return decode_manifest(key, body)

    def _read_prompts(self, key: str, digest: str) -> list[Prompt]:
        body = self.store.get(key)
        if body is None:
            raise ShardCorrupt(key, "nothing", "an input shard")
        found = shard_digest(body)
        if found != digest:
            raise ShardCorrupt(key, f"digest {found}", f"digest {digest}")
        return decode_prompts(key, body)

    def _surely_stored(self, key: str) -> StoredShard:
        stored = self._stored(key)
        if stored is None:
            raise StoreUnavailable(self.store.url, f"read {key}", "it was there a moment ago")
        return stored

    def _stored(self, key: str) -> StoredShard | None:
        info = self.store.head(key)
        if info is None:
            return None
        check_size(key, info.size_bytes, info.metadata)
        try:
            return StoredShard(ShardCounts.from_metadata(key, dict(info.metadata)), info.size_bytes)
        except ShardCorrupt:
            body = self.store.get(key) or b""
            return StoredShard(ShardCounts.of(decode_completions(key, body)), len(body))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _sound(self, key: str, read: Callable[[], T]) -> T:
        """Read what is there and as it was written; what is not, a few times more."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(ShardCorrupt),
            wait=wait_exponential_jitter(multiplier=0.5, max=5.0),
            stop=stop_after_attempt(READS),
            before_sleep=lambda state: log.warning("shard.read_again", cause=_cause_of(state), tries=state.attempt_number),
            reraise=True,
        )
        found: T = await retrying(self._waiting, f"read {key}", read)
        return found

    async def _waiting(self, action: str, call: Callable[[], T]) -> T:
        waiter = object()

        def told(state: RetryCallState) -> None:
            self._causes[waiter] = cause = _cause_of(state)
            log.warning("store.waiting", cause=cause, tries=state.attempt_number, again_in_s=round(state.upcoming_sleep, 1))

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((StoreUnavailable, StoreDenied)),  # rights and credentials come back, too
            wait=wait_random_exponential(multiplier=1.0, max=15.0),
            stop=stop_after_delay(STORE_RETRY_FOR_S),
            before_sleep=told,
            reraise=True,
        )
        silent = StoreUnavailable(self.store.url, action, f"no answer for {SLOW_AFTER_S:g} s")
        slow = asyncio.get_running_loop().call_later(SLOW_AFTER_S, self._causes.setdefault, waiter, str(silent))
        try:
            found: T = await retrying(self._in_thread, call)
        finally:
            slow.cancel()
            self._causes.pop(waiter, None)
        return found


def _cause_of(state: RetryCallState) -> str:
    return str(state.outcome.exception()) if state.outcome else "?"
