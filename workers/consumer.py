"""Celery bootsteps: start the worker's runtime, and take messages only when it wants one.

`EngineRoom` belongs to the worker and lives as long as it; `ReserveOnDemand` belongs to the consumer and is started again
after every lost connection. The seam is the channel's `qos.can_consume`, which Celery's own `worker_disable_prefetch` uses too.
"""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import MethodType
from typing import Any

import structlog
from celery import bootsteps, signals
from celery.worker import state

from workers import celery as configuration
from workers.contract.errors import EXIT_DONE, FleetError, SettingsError
from workers.pool import LoopPool, wake_consumer
from workers.runtime import Runtime

log = structlog.get_logger()

DRAIN_SLACK_S = 10.0
"""After the drain time, for giving batches back over a slow Redis."""

GC_THRESHOLD = 20_000
"""Objects between collections. Python's 700 means a collection every second prompt, each for nothing: no cycles are made."""

_runtime: Runtime | None = None


def current_runtime() -> Runtime:
    """The runtime of this process.

    Raises:
        RuntimeError: No worker runs here.
    """
    if _runtime is None:
        raise RuntimeError("no worker runs in this process; start it with `celery -A workers worker`")
    return _runtime


class EngineRoom(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Brings the runtime up before the consumer, and down before the pool."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        worker.options.update(without_gossip=True, without_mingle=True)  # chatter of N² that we do not use
        self._settings = configuration.settings_from_environment()
        configuration.warn_of_misspelt_settings()
        try:
            self._own = configuration.worker_settings_from_environment()
        except SettingsError as error:
            raise _ended(error) from error
        self._stop: asyncio.Event | None = None
        self._main: Future[None] | None = None
        self._failure: FleetError | None = None

    def start(self, worker: Any) -> None:
        """Start the runtime on the pool's loop."""
        global _runtime  # noqa: PLW0603  (one process, one runtime; Celery offers tasks no other place)
        pool: LoopPool = worker.pool
        self._runtime = _runtime = Runtime(worker.app, self._settings, self._own, worker.hostname, wake_consumer)
        started = threading.Event()
        self._loop = pool.loop
        self._main = asyncio.run_coroutine_threadsafe(self._live(started), pool.loop)
        self._main.add_done_callback(lambda future: started.set())
        started.wait()
        if self._failure is not None:
            raise _ended(self._failure) from self._failure
        signals.worker_shutting_down.connect(self._on_signal, weak=False)
        gc.collect()
        gc.freeze()  # Celery, boto3 and the rest stay for good: do not look at them again
        gc.set_threshold(GC_THRESHOLD, 20, 20)

    async def _live(self, started: threading.Event) -> None:
        self._stop = asyncio.Event()
        try:
            async with self._runtime.running():
                started.set()
                await self._stop.wait()
        except FleetError as error:
            self._failure = error
        except Exception as error:
            log.exception("worker.broken")
            self._failure = SettingsError("the worker", str(error), "a start without an error; the log above says where")

    def _on_signal(self, **_: Any) -> None:
        if self._runtime.draining:  # the second signal
            self._loop.call_soon_threadsafe(self._runtime.hand_back, "told twice to stop")
            _end_within(DRAIN_SLACK_S)
            return
        _end_within(self._own.drain_s + 2 * DRAIN_SLACK_S)
        self._runtime.draining = True
        log.info("worker.draining", for_s=self._own.drain_s)
        self._draining = asyncio.run_coroutine_threadsafe(self._runtime.drain(self._own.drain_s), self._loop)

    def stop(self, worker: Any) -> None:
        """Drain, then stop the runtime."""
        if self._main is None or self._main.done():
            return
        if not self._runtime.draining:  # remote shutdown comes without a signal
            self._on_signal()
        self._draining.result(timeout=self._own.drain_s + DRAIN_SLACK_S)
        asyncio.run_coroutine_threadsafe(self._runtime.all_given_back(DRAIN_SLACK_S), self._loop).result()
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._main.result(timeout=DRAIN_SLACK_S)


def _end_within(limit_s: float) -> None:
    """However Redis or the store hang: the process is gone by then, and its leases lapse."""

    def end() -> None:
        log.warning("worker.cut_off", after_s=limit_s, next="its leases lapse, and its batches run elsewhere")
        os._exit(EXIT_DONE)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()


def _ended(error: FleetError) -> SystemExit:
    sys.stderr.write(f"{error}\n")
    return SystemExit(error.exit_code)


def _refusing_rubbish(channel: Any, read: Callable[..., bool]) -> Callable[..., bool]:
    """Read a message; one that nobody can decode is dropped and told, for it would end this worker and the next ones too."""

    def read_or_refuse(**options: Any) -> bool:
        before = set(channel.qos._delivered)
        try:
            return read(**options)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            log.exception("message.refused", cause=f"{type(error).__name__}: {str(error)[:200]}", exc_info=False)
            for tag in set(channel.qos._delivered) - before:
                channel.basic_reject(tag, requeue=False)
            return True

    return read_or_refuse


class ReserveOnDemand(bootsteps.StartStopStep):  # type: ignore[misc]  # ditto
    """Lets the transport take a message only when the runtime wants one and none is on its way."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Wrap the new channel's `can_consume`."""
        runtime = current_runtime()
        qos = consumer.task_consumer.channel.qos
        transport_allows = qos.can_consume

        def can_consume(_: Any) -> bool:
            on_their_way = len(state.reserved_requests) - runtime.deliveries.settled
            return on_their_way <= 0 and runtime.wants_message and transport_allows()

        qos.can_consume = MethodType(can_consume, qos)
        channel = consumer.task_consumer.channel
        channel.handlers["BRPOP"] = _refusing_rubbish(channel, channel.handlers["BRPOP"])
