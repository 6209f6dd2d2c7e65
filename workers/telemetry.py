"""A worker's gauges: of its engine, of its GPU, and of its own loop. Read every few seconds, told by its beat.

What cannot be read is absent, and what is older than a few readings too: a number that stands still must not look alive.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from workers.contract.errors import EngineUnavailable
from workers.engine import Engine
from workers.gauges import EngineGauges
from workers.gpu import Gpu, GpuGauges

READ_EVERY_S = 3.0
STALE_AFTER_S = 10.0


class Telemetry:
    """Reads until cancelled; `fields` is what is known now."""

    def __init__(self, engine: Engine, serves: Callable[[], bool], threads: ThreadPoolExecutor, gpu: Gpu | None) -> None:
        self._engine = engine
        self._serves = serves
        self._threads = threads
        self._gpu = gpu
        self._engine_read = (EngineGauges(), 0.0)
        self._gpu_read = (GpuGauges(), 0.0)
        self._loop_lag_s = 0.0

    async def watch(self) -> None:
        """Read everything, again and again."""
        await asyncio.gather(self._watch_engine(), self._watch_gpu(), self._watch_loop())

    def fields(self) -> dict[str, float]:
        """Names and values, without what is not known."""
        told: dict[str, float] = {"loop_lag_s": round(self._loop_lag_s, 4)}
        for gauges, read_at in (self._engine_read, self._gpu_read):
            if time.monotonic() - read_at <= STALE_AFTER_S:
                prefix = "engine_" if isinstance(gauges, EngineGauges) else ""
                told |= {prefix + name: value for name, value in msgspec.to_builtins(gauges).items()}
        return told

    async def _watch_engine(self) -> None:
        while True:
            if self._serves():
                with contextlib.suppress(EngineUnavailable):  # others judge its health; what was read grows stale
                    self._engine_read = (await self._engine.gauges(), time.monotonic())
            await asyncio.sleep(READ_EVERY_S)

    async def _watch_gpu(self) -> None:
        while self._gpu is not None:
            read = await asyncio.get_running_loop().run_in_executor(self._threads, self._gpu.read)
            self._gpu_read = (read, time.monotonic())
            await asyncio.sleep(READ_EVERY_S)

    async def _watch_loop(self) -> None:
        """The worst of the last readings: how late a sleeper is woken when others keep the loop busy."""
        worst = [0.0] * 3
        while True:
            lag = 0.0
            for _ in range(10):
                begun = time.monotonic()
                await asyncio.sleep(READ_EVERY_S / 10)
                lag = max(lag, time.monotonic() - begun - READ_EVERY_S / 10)
            worst = [*worst[1:], lag]
            self._loop_lag_s = max(worst)
