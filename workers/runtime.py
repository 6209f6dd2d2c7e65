"""One worker process: what it is made of, and its life from start over meeting the engine to drain.

Runs on the pool's event loop. Celery's side is workers/tasks.py and workers/consumer.py.
"""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import redis.asyncio
import redis.exceptions
import structlog
from celery import Celery

from workers.beat import Heart
from workers.broker import broker_errors, connect_async
from workers.contract.errors import EXIT_FAILED, BrokerUnavailable, EngineUnavailable
from workers.contract.settings import FleetSettings
from workers.deliveries import Deliveries
from workers.engine import Engine, EngineInfo
from workers.execute import Bench
from workers.gpu import Gpu
from workers.health import EngineHealth
from workers.ledger import Ledger
from workers.retry import RetryPolicy
from workers.settings import WorkerSettings
from workers.shards import MAX_UNWRITTEN, ShardRoom
from workers.slots import Slots, slots_for
from workers.store import ObjectStore, open_store
from workers.suspects import SuspectLane
from workers.telemetry import Telemetry

DEFAULT_RUNNING_LIMIT = 16
"""When the engine does not tell its limit: low enough for any engine, and the log says so."""
STORE_THREADS = 16
POLL_S = 0.05
FAREWELL_WITHIN_S = 2.0

log = structlog.get_logger()


def _end_process_if_failed(task: "asyncio.Task[None]") -> None:
    """A worker without its beat or its checkpoints must not look alive: end it, so that its supervisor starts a new one."""
    if not task.cancelled() and task.exception() is not None:
        log.error("worker.broken", exc_info=task.exception())
        os._exit(EXIT_FAILED)


class Runtime:
    """See the module. Built in the main thread, used on the loop."""

    def __init__(
        self, app: Celery, settings: FleetSettings, own: WorkerSettings, worker: str, on_free: Callable[[], None]
    ) -> None:
        self._app = app
        self._settings = settings
        self._own = own
        self._worker = worker
        self._on_free = on_free
        self._threads = ThreadPoolExecutor(max_workers=STORE_THREADS, thread_name_prefix="store")
        self.draining = False
        self.deliveries: Deliveries

    @property
    def wants_message(self) -> bool:
        """Whether to take the next message now (DESIGN §5.1). Asked by the consumer, from its own thread."""
        store_keeps_up = self._shards.unwritten < MAX_UNWRITTEN
        parts_serve = self._met and self._health.serves and not self._heart.failing and store_keeps_up
        return not self.draining and parts_serve and self._slots.wants_batch

    @property
    def _met(self) -> bool:
        return self.deliveries.engine_info is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that lives as long as the process.

        Raises:
            StoreUnavailable, StoreDenied: The store cannot be used; the worker does not start.
            BrokerDenied, BrokerUntrusted: Nor with a Redis that refuses us, or that nobody vouches for.
        """
        async with AsyncExitStack() as stack:
            heart, ledger, telemetry = await self._assembled(
                stack, await self._reached_redis(stack), await self._checked_store()
            )
            lives = (self._health.watch(), ledger.write_checkpoints(), heart.beat(), heart.sweep(), telemetry.watch())
            tasks = [asyncio.create_task(life) for life in lives]
            for task in tasks:
                task.add_done_callback(_end_process_if_failed)
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                with contextlib.suppress(redis.exceptions.RedisError, TimeoutError):
                    async with asyncio.timeout(FAREWELL_WITHIN_S):
                        await heart.leave()
        self._threads.shutdown(wait=False)

    async def _reached_redis(self, stack: AsyncExitStack) -> "redis.asyncio.Redis":
        """A client. A Redis that is away is waited for; one that refuses us is an error."""
        if self._settings.broker_url.unprotected:
            log.warning("broker.unprotected", next="give Redis a password, and FLEET_BROKER too (SECURITY.md)")
        client = connect_async(self._settings)
        stack.push_async_callback(client.aclose)
        try:
            with broker_errors(self._settings):
                await client.ping()
        except BrokerUnavailable as error:
            log.warning("broker.away", cause=str(error), next="tried again until it is there")
        with contextlib.suppress(redis.exceptions.RedisError):  # one that may not ask is not told
            policy = (await client.info("memory")).get("maxmemory_policy")
            if policy not in {None, "noeviction"}:
                log.warning("broker.evicts", policy=policy, next="set maxmemory-policy noeviction, or counters go wrong")
        return client

    async def _checked_store(self) -> ObjectStore:
        store = open_store(self._settings, patient=False)
        if weaker := await asyncio.get_running_loop().run_in_executor(self._threads, store.check):
            log.warning("store.weaker", what=weaker)
        return store

    async def _assembled(
        self, stack: AsyncExitStack, client: "redis.asyncio.Redis", store: ObjectStore
    ) -> tuple[Heart, Ledger, Telemetry]:
        """All parts, each knowing those below it; none runs yet."""
        own = self._own
        self._engine = await stack.enter_async_context(Engine(own.engine_url, own.engine_api_key, own.request_timeout_s))
        self._slots = Slots(own.fixed_slots() or slots_for(DEFAULT_RUNNING_LIMIT), on_low_water=self._on_free)
        self._health = EngineHealth(
            self._engine,
            own.hang_s,
            in_flight=lambda: self._slots.in_flight,
            on_change=self._on_free,
            meet=self._know_engine,
        )
        policy = RetryPolicy(own.max_tries, own.retry_for_s)
        self._suspects = SuspectLane()
        jitter = random.Random()  # noqa: S311  (no secret)
        bench = Bench(self._engine, self._health, self._slots, policy, jitter, self._suspects)
        ledger = Ledger(client, self._worker, self._settings.lease_s)
        self._shards = ShardRoom(store, self._threads)
        self.deliveries = Deliveries(self._app, self._worker, ledger, self._shards, bench, self._on_free)
        telemetry = Telemetry(self._engine, lambda: self._health.serves, self._threads, Gpu.find(own.gpu))
        self._heart = Heart(
            client,
            self._worker,
            ledger,
            self.deliveries,
            bench,
            self._shards,
            telemetry,
            renewal_s=self._settings.lease_renewal_s,
            engine_grace_s=own.engine_grace_s,
        )
        return self._heart, ledger, telemetry

    async def _know_engine(self) -> str | None:
        """Each time before the engine serves, learn what it is: it may have come back as another one. Why not, or None."""
        try:
            info = await self._engine.info()
        except EngineUnavailable as error:
            return error.cause
        info = msgspec.structs.replace(info, model=self._own.model or info.model)
        before = self.deliveries.engine_info
        if before is not None and before.model != info.model:
            log.warning("engine.replaced", model=info.model, before=before.model, next="its batches are handed back")
            self.deliveries.hand_back_all(f"the engine serves {info.model} now, not {before.model}")
        self._meet(info)
        return None

    def _meet(self, info: EngineInfo) -> None:
        fixed, limit = self._own.fixed_slots(), info.running_limit
        count = fixed or slots_for(limit or DEFAULT_RUNNING_LIMIT)
        source = "FLEET_SLOTS" if fixed else "the engine's running limit" if limit else "the engine tells no running limit"
        self._slots.resize(count)
        self._suspects.slots = count
        self.deliveries.engine_info = info
        log.info(
            "worker.ready",
            worker=self._worker,
            slots=count,
            slots_from=source,
            running_limit=limit,
            engine=self._engine.url,
            engine_version=info.version,
            model=info.model,
        )
        self._on_free()

    async def drain(self, for_s: float) -> None:
        """Take nothing new, begin nothing, end what is in flight for `for_s`, then hand everything back."""
        self.draining = self.deliveries.draining = True
        self._slots.stop_starting()
        ends = time.monotonic() + for_s
        while self._something_ends() and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        self.hand_back("the worker drains")

    def _something_ends(self) -> bool:
        """Requests are in flight, or finished batches on their way to the store."""
        opened = self.deliveries.open.values()
        return bool(opened) and (self._slots.in_flight > 0 or any(batch.storing for batch in opened))

    def hand_back(self, because: str) -> None:
        """Put every open batch back into the queue now."""
        self.deliveries.hand_back_all(because)

    async def all_given_back(self, for_s: float) -> None:
        """Wait until every delivery has ended."""
        ends = time.monotonic() + for_s
        while self.deliveries.active and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
