"""Room for requests in flight in one engine, and the rule when the next batch is taken. No I/O.

Slots are taken in the order in which they were asked for, so that older batches finish first. A worker takes the next
message when the prompts that it holds unstarted fall to the low-water mark, never before (DESIGN §5.1).
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

BACKLOG = 1.25
"""`auto`: so much more than the engine runs at once, so that its batch is refilled from its own queue without a round trip."""
LOW_WATER_SHARE = 16
"""One slot in so many at least: the unstarted prompts that bridge the time of fetching the next batch."""
RESERVE_MARGIN = 2.0
"""Fetching a batch may take twice as long as it usually does before slots run empty."""
SMOOTHING = 0.2


def slots_for(running_limit: int) -> int:
    """Slots for an engine that runs `running_limit` requests at once."""
    return math.ceil(running_limit * BACKLOG)


def low_water_mark(slots: int, ends_per_s: float = 0.0, reserve_s: float = 0.0) -> int:
    """Unstarted prompts at which the next batch is taken: those that start while it is being fetched (Little's law).

    Args:
        slots: Of the worker; also the most that is ever held ready.
        ends_per_s: Prompts that gave their slot to the next, lately.
        reserve_s: From a message to its prompts waiting for slots, lately.
    """
    return min(slots, max(1, slots // LOW_WATER_SHARE, math.ceil(ends_per_s * reserve_s * RESERVE_MARGIN)))


class Slots:
    """Counts of one worker: `unstarted` wait for a slot, `in_flight` have one. Used from one event loop only."""

    def __init__(self, limit: int, on_low_water: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.low_water = low_water_mark(limit)
        self.unstarted = 0
        self.in_flight = 0
        self.finished = 0
        self._reserve_s = 0.0
        self._ends_per_s = 0.0
        self._seen: tuple[float, int] = (time.monotonic(), 0)
        self.busy_slot_seconds = 0.0
        self._changed_at = time.monotonic()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._held = 0
        self._on_low_water = on_low_water
        self._starting = True
        self._asked = False

    @property
    def wants_batch(self) -> bool:
        """The unstarted prompts are used up but for the low-water mark."""
        return self.unstarted <= self.low_water

    def batch_arrived(self, reserve_s: float) -> None:
        """A batch's prompts wait for slots; learn from how long it took and how fast slots came free meanwhile."""
        self._asked = False
        now = time.monotonic()
        since, finished = self._seen
        self._seen = (now, self.finished)
        if now > since:
            self._ends_per_s += SMOOTHING * ((self.finished - finished) / (now - since) - self._ends_per_s)
        self._reserve_s += SMOOTHING * (reserve_s - self._reserve_s)
        self.low_water = low_water_mark(self.limit, self._ends_per_s, self._reserve_s)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it."""
        self.unstarted += 1
        try:
            await self._acquire()
            if not self._starting:
                try:
                    await asyncio.Future()  # until its batch is handed back
                finally:
                    self._release()
        finally:
            self._no_longer_unstarted()
        self._account(+1)
        try:
            yield
        finally:
            self._account(-1)
            self.finished += 1
            self._release()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """A prompt waits for its next try: it is in hand and not started, so nothing is taken in its place."""
        self.unstarted += 1
        try:
            yield
        finally:
            self._no_longer_unstarted()

    def _no_longer_unstarted(self) -> None:
        self.unstarted -= 1
        if self.wants_batch and not self._asked:
            self._asked = True
            self._on_low_water()

    def resize(self, limit: int) -> None:
        """Have so many slots from now on; slots that are too many end with their requests."""
        self.limit = limit
        self.low_water = low_water_mark(limit, self._ends_per_s, self._reserve_s)
        self._wake()

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

    async def _acquire(self) -> None:
        if self._held < self.limit and not self._waiting:
            self._held += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came in the same moment
                self._release()
            raise

    def _release(self) -> None:
        self._held -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._held < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # else its batch was taken back meanwhile
                self._held += 1
                turn.set_result(None)
