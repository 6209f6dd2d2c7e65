"""Whether this worker's engine serves, from its own progress and never from `/health`.

An engine is sick when it refuses connections, or when requests are in flight and no token moves for `hang_s`. A sick engine
is asked for one token every few seconds, and serves again when it gives it. One that is full of work lets that token wait in
its queue, so moving counters are a sign of life, too. Knows nothing of batches: `on_change` tells.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from workers.contract.errors import EngineOverloaded, EngineUnavailable
from workers.engine import PROBE_TIMEOUT_S, Engine

WATCH_INTERVAL_S = 5.0
"""Twelve looks within the default `FLEET_HANG_S`: a hang is seen at most one look after it."""
PROBE_INTERVAL_S = 1.0
TOLD_AGAIN_S = 60.0
"""Of an engine that is not there yet, the log says so this often."""
NOT_ASKED = "not asked yet"

log = structlog.get_logger()


class EngineHealth:
    """State of one engine. `cause` is None while it serves; `since` is when that began, by the monotonic clock."""

    def __init__(
        self,
        engine: Engine,
        hang_s: float,
        in_flight: Callable[[], int],
        on_change: Callable[[], None] = lambda: None,
        meet: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """Take an engine.

        Args:
            engine: The client.
            hang_s: No token for so long with requests in flight: it hangs.
            in_flight: Requests that it has.
            on_change: Called when it falls sick, or serves.
            meet: Learns what it is, before it serves; why that failed, or None.
        """
        self._engine = engine
        self._hang_s = hang_s
        self._in_flight = in_flight
        self._on_change = on_change
        self._meet = meet
        self._serving = asyncio.Event()
        self._suspected = asyncio.Event()
        self._suspicion: EngineUnavailable | None = None
        self._verdict: asyncio.Future[bool] | None = None
        self._answers = 0
        self._answered_at = time.monotonic()
        self._served = False
        self._told_at = -TOLD_AGAIN_S
        self.cause: str | None = NOT_ASKED
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

    def answered(self) -> None:
        """It gave an answer: a sign of life that needs no question."""
        self._answers += 1
        self._answered_at = time.monotonic()

    async def overloaded(self, error: EngineOverloaded) -> None:
        """A request met a full queue: ordinary while others are answered; if none is for long, look at the engine."""
        if time.monotonic() - self._answered_at > self._hang_s:
            await self.found_dead(EngineUnavailable(self._engine.url, str(error), kind="error"))

    async def found_dead(self, error: EngineUnavailable) -> bool:
        """A request met this: look at the engine now.

        Returns:
            Whether the engine is sick; False if it serves, so that the error was a single one.
        """
        if not self.serves:
            return True
        if self._verdict is None:
            self._verdict = asyncio.get_running_loop().create_future()
            self._suspicion = error
            self._suspected.set()
        return await asyncio.shield(self._verdict)

    async def watch(self) -> None:
        """Look after the engine until cancelled."""
        while True:
            await self._until_it_serves()
            self._set(None)
            self._set(await self._until_it_is_sick())

    async def _until_it_serves(self) -> None:
        while (cause := await self._ails()) is not None:
            self._tell(cause)
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def _ails(self) -> str | None:
        """Why it does not serve, or None."""
        cause = await self._probed(self._suspicion)
        return cause if cause is not None or self._meet is None else await self._meet()

    def _tell(self, cause: str) -> None:
        """Say why it does not serve, now and then; once it has served, why it fell sick is the cause that stays."""
        cause = f"engine {self._engine.url}: {cause}"
        news = self.cause == NOT_ASKED
        if not self._served:
            self.cause = cause
        if news or time.monotonic() - self._told_at >= TOLD_AGAIN_S:
            self._told_at = time.monotonic()
            log.warning("engine.away", cause=cause, next="asked again every second; is it up, and does ENGINE_URL name it?")

    async def _probed(self, suspicion: EngineUnavailable | None) -> str | None:
        """None if it gives one token, or is seen at work; an engine that answers with errors must give the token."""
        probe = asyncio.create_task(self._engine.probe())
        if suspicion is None or suspicion.kind == "error":
            return await probe
        try:
            first = await self._reading()
            while not probe.done():
                await asyncio.wait({probe}, timeout=PROBE_TIMEOUT_S / 5)
                if first is not None and await self._reading() not in {None, first}:
                    return None
            return probe.result()
        finally:
            probe.cancel()

    async def _reading(self) -> tuple[object, ...] | None:
        try:
            return await self._engine.progress()
        except EngineUnavailable:
            return None

    async def _until_it_is_sick(self) -> str:
        last: object = None
        moved_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(min(WATCH_INTERVAL_S, self._hang_s / 4)):
                    await self._suspected.wait()
                self._suspected.clear()
                if self._suspicion is not None and await self._probed(self._suspicion) is not None:
                    return self._suspicion.cause
                self._suspicion = None
                self._decide(died=False)
            except TimeoutError:
                pass
            if self._in_flight() == 0:
                moved_at = time.monotonic()
                continue
            seen: object
            try:
                seen = (self._answers, await self._engine.progress())
            except EngineUnavailable as error:
                seen = (self._answers, last[1] if isinstance(last, tuple) else None)
                if error.kind == "refused":
                    return error.cause
            if seen != last:
                last, moved_at = seen, time.monotonic()
            elif time.monotonic() - moved_at >= self._hang_s:
                return f"no token for {self._hang_s:g} s with {self._in_flight()} requests in flight"

    def _set(self, cause: str | None) -> None:
        if cause is None:
            self._suspicion = None
            self._served = True
            self._answered_at = time.monotonic()
            self._serving.set()
            log.info("engine.serves", engine=self._engine.url, after_s=round(self.sick_for_s(), 1))
        else:
            self._serving.clear()
            log.warning("engine.sick", engine=self._engine.url, cause=cause, next="asked for one token every second")
        self.cause, self.since = cause, time.monotonic()
        self._decide(died=cause is not None)
        self._on_change()

    def _decide(self, *, died: bool) -> None:
        if self._verdict is not None:
            self._verdict.set_result(died)
            self._verdict = None
