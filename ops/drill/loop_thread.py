"""An event loop in a thread of its own, for servers beside code that blocks."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_WITHIN_S = 10.0


class LoopThread:
    """Runs from `start` to `stop`; nothing that is asked of it takes longer than ten seconds."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_WITHIN_S)

    def stop(self) -> None:
        """Cancel what still runs, and end."""
        self.call(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_WITHIN_S)
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
