"""Find batches whose message was lost, and push them again. One worker at a time sweeps.

Kombu's Redis transport loses a message in rare windows (popped, and the process died before it was recorded anywhere). The
invariant that shows it: a batch that was pushed, is not done and is leased by nobody has a message in the queue. Counts tell
whether it holds; only when they do not, twice, is the queue read.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import redis.asyncio
import structlog

from workers.broker import QUEUE_LISTS, UNACKED, batches_named
from workers.contract import layout, names
from workers.contract.names import RunKeys

SWEEP_INTERVAL_S = 5.0
RECHECK_S = 2.0
"""A message on its way from the queue to its claim is in neither for some milliseconds; not for two seconds."""
READ_CHUNK = 1000
SWEEP_LIMIT = 500
"""Batches that one sweep pushes at most; the next one goes on."""
UNACKED_LIMIT = 10_000
UNACKED_COUNT_FOR_S = 25.0
"""Twice the time after which the transport itself puts back what a dead worker had taken; what stays longer is not ours."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Lost:
    """A batch without message, lease or result."""

    run: str
    batch: str


def waiting_batches(pushed: bytes, done: bytes, leased: Iterable[str]) -> list[int]:
    """Numbers of batches that must have a message: pushed, not done, not leased.

    Args:
        pushed: Bitmap, bit 0 is the highest bit of the first byte (Redis' order).
        done: The same.
        leased: Labels of batches.
    """
    taken = {parsed for label in leased if (parsed := layout.parse_batch_label(label)) is not None}
    numbers = []
    for place, byte in enumerate(pushed):
        left = byte & ~(done[place] if place < len(done) else 0)
        for bit in range(8):
            if left & (0x80 >> bit) and (number := place * 8 + bit) not in taken:
                numbers.append(number)
    return numbers


class Sweep:
    """The sweep as one worker runs it."""

    def __init__(self, client: "redis.asyncio.Redis", worker: str) -> None:
        self._redis = client
        self._worker = worker
        self._short_since: float | None = None

    async def lost_batches(self, runs: list[str]) -> list[Lost]:
        """Batches whose message is gone; empty if another worker sweeps now, or nothing is lost.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        if not await self._redis.set(names.SWEEP, self._worker, nx=True, px=round(names.SWEEP_TTL_S * 1000)):
            return []
        try:
            return await self._found(runs)
        finally:  # the next one is due then, whoever makes it
            await self._redis.pexpire(names.SWEEP, round(SWEEP_INTERVAL_S * 1000))

    async def _found(self, runs: list[str]) -> list[Lost]:
        if not await self._is_short(runs):
            return []
        await asyncio.sleep(RECHECK_S)
        if not await self._is_short(runs):
            return []
        waiting_before = {run: await self._waiting(run) for run in runs}
        named = await self._named()
        lost = []
        for run in runs:
            # Still waiting after the queue was read: what was claimed or finished meanwhile had its message.
            still = set(await self._waiting(run))
            for number in waiting_before[run]:
                if number in still and (run, layout.batch_label(number)) not in named:
                    lost.append(Lost(run, layout.batch_label(number)))
        if lost:
            lost = lost[:SWEEP_LIMIT]
            log.warning("sweep.found", batches=len(lost), first=lost[0].batch, run=lost[0].run, next="pushed again")
        return lost

    async def _is_short(self, runs: list[str]) -> bool:
        """Whether fewer messages wait than batches do. Messages that nobody acknowledges count for a while only."""
        owed, queued, unacked = await self._counts(runs)
        if owed <= queued:
            self._short_since = None
            return False
        self._short_since = self._short_since or time.monotonic()
        return owed > queued + unacked or time.monotonic() - self._short_since > UNACKED_COUNT_FOR_S

    async def _counts(self, runs: list[str]) -> tuple[int, int, int]:
        pipeline = self._redis.pipeline(transaction=True)
        for run in runs:
            keys = RunKeys(run)
            pipeline.bitcount(keys.pushed)
            pipeline.bitcount(keys.done)
            pipeline.zcard(keys.lease)
        for name in QUEUE_LISTS:
            pipeline.llen(name)
        pipeline.hlen(UNACKED)
        found = await pipeline.execute()
        owed = sum(max(0, found[3 * i] - found[3 * i + 1] - found[3 * i + 2]) for i in range(len(runs)))
        return owed, sum(found[3 * len(runs) : -1]), found[-1]

    async def _waiting(self, run: str) -> list[int]:
        keys = RunKeys(run)
        pushed = cast("bytes | None", await self._redis.get(keys.pushed))
        done = cast("bytes | None", await self._redis.get(keys.done))
        leased = cast("list[bytes]", await self._redis.zrange(keys.lease, 0, -1))
        return waiting_batches(pushed or b"", done or b"", (label.decode() for label in leased))

    async def _named(self) -> set[tuple[str, str]]:
        named: set[tuple[str, str]] = set()
        for name in QUEUE_LISTS:
            for start in range(0, await self._redis.llen(name), READ_CHUNK):
                chunk = cast("list[bytes]", await self._redis.lrange(name, start, start + READ_CHUNK - 1))
                named.update(batches_named(chunk))
        if await self._redis.hlen(UNACKED) <= UNACKED_LIMIT:
            named.update(batches_named(cast("list[bytes]", await self._redis.hvals(UNACKED)), unacked=True))
        return named
