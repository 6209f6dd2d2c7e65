"""One worker process: its engine, ledger, store, slots, and the batches that it holds.

Runs on the pool's event loop. Follows a delivery from claim to commit (`deliver`), and keeps the leases alive (`beat`).
Every delivery ends in exactly one log event. Celery's side is workers/tasks.py and workers/consumer.py.
"""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import redis.exceptions
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from workers.broker import connect_async
from workers.contract import names
from workers.contract.errors import EXIT_FAILED, FleetError, Permanent
from workers.contract.schema import BatchMessage, Provenance
from workers.contract.settings import FleetSettings
from workers.engine import Engine, EngineInfo
from workers.execute import BatchExecution, Bench
from workers.health import EngineHealth
from workers.ledger import Claim, Claimed, Ledger
from workers.publish import push
from workers.retry import RetryPolicy
from workers.settings import WorkerSettings
from workers.shards import ShardRoom
from workers.slots import Slots, slots_for
from workers.store import open_store
from workers.sweep import SWEEP_INTERVAL_S, Sweep

MAX_ATTEMPTS = 8
"""Deliveries of one batch that may end in an error of ours before it is parked for a person."""
DEFAULT_RUNNING_LIMIT = 16
"""When the engine does not tell its limit: low enough for any engine, and the log says so."""
CAUSE_LENGTH = 300

log = structlog.get_logger()
T = TypeVar("T")


LOST = "another worker holds it"
Ending = tuple[str, dict[str, object]]
"""The event that a delivery ends in, and its fields."""
_NOT_CLAIMED = {
    "done": "batch.already_done",
    "held": "batch.already_held",
    "paused": "batch.paused",
    "cancelled": "batch.cancelled",
    "unknown": "batch.of_unknown_run",
}


@dataclass
class OpenBatch:
    """A batch in this worker's hands."""

    message: BatchMessage
    claim: Claim
    taken_at: float
    work: "asyncio.Task[object] | None" = None
    execution: BatchExecution | None = None
    ended_because: str = ""
    left_over: list[str] = field(default_factory=list)

    def end(self, because: str) -> None:
        """Stop working on it."""
        self.ended_because = because
        self.left_over = list(self.execution.requests_in_flight) if self.execution else []
        if self.work is not None:
            self.work.cancel()


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
        self._open: dict[str, OpenBatch] = {}
        self.settled = 0
        self._info: EngineInfo | None = None
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="io")
        self._started_at = time.time()
        self._completed = self._failed = 0
        self.draining = False
        self.slots: Slots | None = None
        self._ready = asyncio.Event()

    # --- what the consumer asks, from its own thread ---

    @property
    def wants_message(self) -> bool:
        """Whether to take the next message now (DESIGN §5.1)."""
        return not self.draining and self.slots is not None and self.slots.wants_batch and self._health.serves

    # --- life ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything that lives as long as the process."""
        async with AsyncExitStack() as stack:
            self._redis = connect_async(self._settings)
            stack.push_async_callback(self._redis.aclose)
            self._ledger = Ledger(self._redis, self._worker, self._settings.lease_s)
            self._sweep = Sweep(self._redis, self._worker)
            self._shards = ShardRoom(open_store(self._settings), self._threads)
            self._engine = await stack.enter_async_context(
                Engine(self._own.engine_url, self._own.engine_api_key, self._own.request_timeout_s)
            )
            self._health = EngineHealth(
                self._engine,
                self._own.hang_s,
                in_flight=lambda: self.slots.in_flight if self.slots else 0,
                finished=lambda: self.slots.finished if self.slots else 0,
                on_change=self._on_free,
            )
            if weaker := await self._in_thread(self._shards.store.check):
                log.warning("store.weaker", what=weaker)
            tasks = [
                asyncio.create_task(work) for work in (self._health.watch(), self._ledger.write_checkpoints(), self._beat())
            ]
            for task in tasks:
                task.add_done_callback(_end_process_if_failed)
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def meet_engine(self) -> None:
        """Wait until the engine serves, then size the slots to it."""
        await self._health.serving()
        self._info = await self._engine.info()
        fixed, limit = self._own.fixed_slots(), self._info.running_limit
        count = fixed or slots_for(limit or DEFAULT_RUNNING_LIMIT)
        source = "FLEET_SLOTS" if fixed else "the engine's running limit" if limit else "the engine tells no running limit"
        self.slots = Slots(count, on_low_water=self._on_free)
        self._bench = Bench(
            self._engine,
            self._health,
            self.slots,
            RetryPolicy(self._own.max_tries, self._own.retry_for_s),
            random.Random(),  # noqa: S311  (jitter is no secret)
        )
        self._ready.set()
        log.info(
            "worker.ready",
            worker=self._worker,
            slots=count,
            slots_from=source,
            running_limit=limit,
            engine=self._engine.url,
            engine_version=self._info.version,
            model=self._info.model,
        )
        self._on_free()

    async def drain(self, for_s: float) -> None:
        """Take nothing new, finish what is in flight for `for_s`, then hand everything back."""
        self.draining = True
        if self.slots is not None:
            self.slots.stop_starting()
        ends = time.monotonic() + for_s
        while self._open and self.slots and self.slots.in_flight and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.hand_back("the worker drains")

    async def all_given_back(self, for_s: float) -> None:
        """Wait until every open batch has ended."""
        ends = time.monotonic() + for_s
        while self._open and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def hand_back(self, because: str) -> None:
        """Put every open batch back into the queue now."""
        for batch in list(self._open.values()):
            batch.end(because)

    # --- a delivery ---

    async def deliver(self, message: BatchMessage) -> str:
        """Follow one message to its end.

        Returns:
            The name of the event that it ended in.
        """
        begun = time.monotonic()
        event, fields = await self._deliver(message, begun)
        log.info(event, run=message.run, batch=message.batch, wall_s=round(time.monotonic() - begun, 2), **fields)
        return event

    async def _deliver(self, message: BatchMessage, begun: float) -> Ending:
        if self.draining or not self._health.serves:
            await self._push(message.run, message.batch)
            return "batch.put_back", {"because": "draining" if self.draining else "engine sick"}
        claimed = await self._ledger.claim(message.run, message.batch)
        if claimed.claim is None:
            return _NOT_CLAIMED[claimed.outcome], {"owner": claimed.owner} if claimed.owner else {}
        batch = OpenBatch(message, claimed.claim, taken_at=begun)
        self._open[batch.claim.token] = batch
        try:
            return await self._work_on(batch, claimed)
        finally:
            del self._open[batch.claim.token]
            self._on_free()

    async def _work_on(self, batch: OpenBatch, claimed: Claimed) -> Ending:
        batch.work = asyncio.create_task(self._complete(batch, claimed))
        attempt: dict[str, object] = {"attempt": batch.claim.attempt}
        try:
            return "batch.completed", {**attempt, **await batch.work}
        except asyncio.CancelledError:
            batch.work.cancel()
            await self._engine.abort(batch.left_over if self._health.serves else [])
            if batch.ended_because == LOST:
                return "batch.lost", attempt
            await self._give_back(batch)
            if not batch.ended_because:  # the job itself was terminated
                raise
            return "batch.handed_back", {**attempt, "because": batch.ended_because}
        except Permanent as error:
            return await self._park(batch, error)
        except Exception as error:
            if batch.claim.attempt >= MAX_ATTEMPTS:
                return await self._park(batch, error)
            log.exception("batch.error", run=batch.claim.run, batch=batch.claim.batch, **attempt)
            await asyncio.sleep(min(30.0, 2.0**batch.claim.attempt))
            await self._give_back(batch)
            return "batch.retried", {**attempt, "cause": str(error)[:CAUSE_LENGTH]}

    async def _complete(self, batch: OpenBatch, claimed: Claimed) -> dict[str, object]:
        message, claim = batch.message, batch.claim
        manifest = await self._shards.manifest(message.run)
        prompts = await self._shards.prompts(message)
        info = self._info
        execution = BatchExecution(
            self._bench,
            manifest.sampling,
            Provenance(
                worker=self._worker,
                engine_version=info.version if info else None,
                model=info.model if info else None,
                attempt=claim.attempt,
            ),
            keep=lambda completion: self._ledger.checkpoint(claim, completion),
        )
        batch.execution = execution
        with self._settling(batch):
            outcomes = await execution.run(prompts, claimed.kept or {})
        stored = await self._shards.write(claim.run, claim.batch, outcomes)
        _, status = await self._ledger.commit(claim, stored.counts, stored.shard_bytes)
        self._completed += stored.counts.completed
        self._failed += stored.counts.failed
        if status == "complete":
            log.info("run.complete", run=claim.run)
        return {
            "prompts": len(prompts),
            "failed": stored.counts.failed,
            "resumed": len(claimed.kept or {}),
            "completion_tokens": stored.counts.completion_tokens,
        }

    @contextmanager
    def _settling(self, batch: OpenBatch) -> Iterator[None]:
        """The prompts of a batch wait for slots: it is no longer on its way, so the next may be taken when they run low."""
        self.settled += 1
        if self.slots is not None:
            self.slots.batch_arrived(time.monotonic() - batch.taken_at)
        try:
            yield
        finally:
            self.settled -= 1

    async def _park(self, batch: OpenBatch, cause: BaseException) -> Ending:
        await self._ledger.release(batch.claim, parked_because=str(cause)[:CAUSE_LENGTH])
        return "batch.dead_lettered", {"attempt": batch.claim.attempt, "cause": str(cause)[:CAUSE_LENGTH]}

    async def _give_back(self, batch: OpenBatch) -> None:
        if await self._ledger.release(batch.claim):
            await self._push(batch.claim.run, batch.claim.batch)

    async def _push(self, run: str, batch: str) -> None:
        try:
            message, priority = await self._shards.message(run, batch)
            await self._in_thread(lambda: push(self._app, message, priority, recovered=True))
        except (FleetError, OperationalError) as error:  # the sweep finds a batch without a message
            log.warning("push.failed", run=run, batch=batch, cause=str(error), next="the sweep pushes it")

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # --- the beat ---

    async def _beat(self) -> None:
        swept_at = 0.0
        while True:
            begun = time.monotonic()
            try:
                runs = [run.decode() for run in cast("list[bytes]", await self._redis.zrange(names.RUNS, 0, -1))]
                for run in {*runs, *(batch.claim.run for batch in self._open.values())}:
                    await self._beat_run(run)
                await self._tell()
                if begun - swept_at >= SWEEP_INTERVAL_S:
                    swept_at = begun
                    for lost in await self._sweep.lost_batches(runs):
                        await self._push(lost.run, lost.batch)
            except redis.exceptions.RedisError as error:
                log.warning("beat.failed", cause=str(error), next=f"again in {self._settings.lease_renewal_s:g} s")
            if not self._health.serves and self._open and self._health.sick_for_s() >= self._own.engine_grace_s:
                self.hand_back(f"engine sick: {self._health.cause}")
            await asyncio.sleep(max(0.05, self._settings.lease_renewal_s - (time.monotonic() - begun)))

    async def _beat_run(self, run: str) -> None:
        held = {batch.claim.batch: batch for batch in self._open.values() if batch.claim.run == run}
        beat = await self._ledger.beat(run, [batch.claim for batch in held.values()])
        for label in beat.lost:
            held[label].end(LOST)
        if beat.status == "cancelled":
            for batch in held.values():
                batch.end("cancelled")
        for label in beat.freed:
            log.warning("lease.lapsed", run=run, batch=label, next="pushed again")
            await self._push(run, label)
        if beat.status == "complete":
            await self._redis.zrem(names.RUNS, run)

    async def _tell(self) -> None:
        key = names.worker_key(self._worker)
        slots, info = self.slots, self._info
        state = "draining" if self.draining else "running" if self._health.serves and slots else "sick" if slots else "starting"
        told: dict[Any, Any] = {
            "state": state,
            "in_flight": slots.in_flight if slots else 0,
            "unstarted": slots.unstarted if slots else 0,
            "open_batches": len(self._open),
            "slots": slots.limit if slots else 0,
            "busy_slot_seconds": round(slots.occupancy(), 3) if slots else 0,
            "completed": self._completed,
            "failed": self._failed,
            "engine_url": self._engine.url,
            "engine_version": info.version if info else "",
            "model": info.model if info else "",
            "cause": self._health.cause or "",
            "started_at": self._started_at,
            "updated_at": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hset(key, mapping=told)
        pipeline.expire(key, round(names.WORKER_TTL_S))
        await pipeline.execute()
