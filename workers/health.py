"""Whether this worker's engine serves, from its own progress and never from `/health`.

An engine is sick when it refuses connections, or when requests are in flight and no token moves for `hang_s`. A sick engine
is asked for one token every few seconds, and serves again when it gives it. Knows nothing of batches: `on_change` tells.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from workers.contract.errors import EngineUnavailable
from workers.engine import Engine

WATCH_INTERVAL_S = 5.0
"""Twelve looks within the default `FLEET_HANG_S`: a hang is seen at most one look after it."""
PROBE_INTERVAL_S = 1.0

log = structlog.get_logger()


class EngineHealth:
    """State of one engine. `cause` is None while it serves; `since` is when that began, by the monotonic clock."""

    def __init__(
        self,
        engine: Engine,
        hang_s: float,
        in_flight: Callable[[], int],
        finished: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._hang_s = hang_s
        self._in_flight = in_flight
        self._finished = finished
        self._on_change = on_change
        self._serving = asyncio.Event()
        self._sick = asyncio.Event()
        self._suspected = asyncio.Event()
        self._suspicion = ""
        self.cause: str | None = "not asked yet"
        self.since = time.monotonic()

    @property
    def serves(self) -> bool:
        """The engine takes requests."""
        return self.cause is None

    def sick_for_s(self) -> float:
        """Seconds since it fell sick; 0 while it serves."""
        return 0.0 if self.serves else time.monotonic() - self.since

    async def serving(self) -> None:
        """Wait until the engine serves."""
        await self._serving.wait()

    async def sick(self) -> None:
        """Wait until the engine does not serve."""
        await self._sick.wait()

    def suspect(self, error: EngineUnavailable) -> None:
        """A request found no engine: look now."""
        self._suspicion = error.cause
        self._suspected.set()

    async def watch(self) -> None:
        """Look after the engine until cancelled."""
        while True:
            await self._until_it_serves()
            self._set(None)
            self._set(await self._until_it_is_sick())

    async def _until_it_serves(self) -> None:
        while not await self._engine.serves():  # noqa: ASYNC110  (the engine sends no event)
            await asyncio.sleep(PROBE_INTERVAL_S)
        self._suspected.clear()

    async def _until_it_is_sick(self) -> str:
        last: object = None
        moved_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(min(WATCH_INTERVAL_S, self._hang_s / 4)):
                    await self._suspected.wait()
                self._suspected.clear()
                if not await self._engine.serves():
                    return self._suspicion
            except TimeoutError:
                pass
            if self._in_flight() == 0:
                moved_at = time.monotonic()
                continue
            seen: object
            try:
                seen = (self._finished(), await self._engine.progress())
            except EngineUnavailable as error:
                seen = (self._finished(), last[1] if isinstance(last, tuple) else None)
                if error.kind == "refused":
                    return error.cause
            if seen != last:
                last, moved_at = seen, time.monotonic()
            elif time.monotonic() - moved_at >= self._hang_s:
                return f"no token for {self._hang_s:g} s with {self._in_flight()} requests in flight"

    def _set(self, cause: str | None) -> None:
        if cause is None:
            self._sick.clear()
            self._serving.set()
            log.info("engine.serves", engine=self._engine.url, after_s=round(self.sick_for_s(), 1))
        else:
            self._serving.clear()
            self._sick.set()
            log.warning("engine.sick", engine=self._engine.url, cause=cause, next="asked for one token every second")
        self.cause, self.since = cause, time.monotonic()
        self._on_change()
