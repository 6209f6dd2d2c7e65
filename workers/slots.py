"""Room for requests in flight in one engine, and the rule when the next batch is taken. No I/O.

Slots are taken in the order in which they were asked for, so that older batches finish first. A worker takes the next
message when the prompts that it holds unstarted fall to the low-water mark, never before (DESIGN §5.1).
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

BACKLOG = 1.25
"""`auto`: so much more than the engine runs at once, so that its batch is refilled from its own queue without a round trip."""
LOW_WATER_SHARE = 8
"""One slot in so many: the unstarted prompts that bridge the time of fetching the next batch."""


def slots_for(running_limit: int) -> int:
    """Slots for an engine that runs `running_limit` requests at once."""
    return math.ceil(running_limit * BACKLOG)


def low_water_mark(slots: int) -> int:
    """Unstarted prompts at which the next batch is taken."""
    return max(1, slots // LOW_WATER_SHARE)


class Slots:
    """Counts of one worker: `unstarted` wait for a slot, `in_flight` have one. Used from one event loop only."""

    def __init__(self, limit: int, on_low_water: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.low_water = low_water_mark(limit)
        self.unstarted = 0
        self.in_flight = 0
        self.finished = 0
        self.busy_slot_seconds = 0.0
        self._changed_at = time.monotonic()
        self._free = asyncio.Semaphore(limit)
        self._on_low_water = on_low_water
        self._starting = True

    @property
    def wants_batch(self) -> bool:
        """The unstarted prompts are used up but for the low-water mark."""
        return self.unstarted <= self.low_water

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        self.unstarted += 1
        try:
            await self._free.acquire()
            if not self._starting:
                await asyncio.Future()  # until its batch is handed back
        finally:
            self.unstarted -= 1
            if self.unstarted == self.low_water:
                self._on_low_water()
        self._account(+1)
        try:
            yield
        finally:
            self._account(-1)
            self.finished += 1
            self._free.release()

    def stop_starting(self) -> None:
        """Let what is in flight go on; whoever waits for a slot waits until it is cancelled."""
        self._starting = False

    def occupancy(self) -> float:
        """Busy slot-seconds since the start; a difference of two readings over time is the mean of busy slots."""
        self._account(0)
        return self.busy_slot_seconds

    def _account(self, change: int) -> None:
        now = time.monotonic()
        self.busy_slot_seconds += self.in_flight * (now - self._changed_at)
        self._changed_at = now
        self.in_flight += change
