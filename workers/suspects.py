"""Who may be tried beside whom, once an engine or worker has died under a prompt (DESIGN §5.6). No I/O.

One death is usually nobody's fault, so its witnesses come again a few at a time; who was in flight at two deaths comes alone.
So the prompt that kills is alone at its third death, and the others have an answer by then.
"""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MAX_DEATHS = 3
"""Deaths of an engine or worker under one prompt, the last one alone, until it has failed."""


def lane_width(slots: int) -> int:
    """How many witnesses of one death are in flight at once: the root, so that both steps of the search take as long."""
    return max(1, math.isqrt(slots))


class SuspectLane:
    """The lane of one worker. Prompts that saw no death are not held up: they fill the other slots."""

    def __init__(self) -> None:
        self.slots = 1
        self._in_lane = 0
        self._alone = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def turn(self, deaths: int) -> AsyncIterator[None]:
        """Wait for the turn of a prompt that saw so many deaths, and hold it."""
        if deaths == 0:
            yield
            return
        alone = deaths > 1
        async with self._changed:
            await self._changed.wait_for(lambda: self._may_enter(alone=alone))
            self._in_lane += 1
            self._alone = alone
        try:
            yield
        finally:
            self._in_lane -= 1
            self._alone = False
            await asyncio.shield(self._tell())

    def _may_enter(self, *, alone: bool) -> bool:
        if self._alone:
            return False
        return self._in_lane == 0 if alone else self._in_lane < lane_width(self.slots)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
