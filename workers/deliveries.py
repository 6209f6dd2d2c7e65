"""A worker's batches: each message followed from claim to commit, or back into the queue.

Every delivery ends in exactly one event. Knows the ledger, the store and the engine of the worker; does not know Celery's
consumer (workers/consumer.py) nor who renews the leases (workers/beat.py).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from workers.contract.errors import FleetError, Permanent, WorkersLost
from workers.contract.schema import BatchMessage, Completion, Provenance
from workers.engine import EngineInfo
from workers.execute import BatchExecution, Bench, Deaths, InFlight
from workers.ledger import Claim, Claimed, Ledger
from workers.publish import push
from workers.shards import ShardRoom, StoredShard

MAX_ATTEMPTS = 8
"""Deliveries of one batch that may end in an error of ours before it is parked for a person."""
MAX_LAPSES = 8
"""Workers that may fall silent with one batch in hand, without one new outcome, before it is parked for a person."""
CAUSE_LENGTH = 300
LONGEST_PAUSE_S = 30.0
STUCK_AFTER_S = 2.0
MAX_STUCK = 8
"""Batches that may wait for their input while others pass them: one bad shard must not idle an engine."""

REFUSED_PAUSE_S = 2.0
MAX_REFUSED = 32
"""Messages of runs that want another model which a worker keeps aside for a moment, so that it comes to those behind them."""

LOST = "another worker holds it"
CANCELLED = "the run was cancelled"
Ending = tuple[str, dict[str, object]]
"""The event that a delivery ends in, and its fields."""
_NOT_CLAIMED = {
    "done": "batch.already_done",
    "held": "batch.already_held",
    "paused": "batch.paused",
    "cancelled": "batch.cancelled",
    "unknown": "batch.of_unknown_run",
}

log = structlog.get_logger()


@dataclass
class OpenBatch:
    """A batch in this worker's hands."""

    message: BatchMessage
    claim: Claim
    taken_at: float
    work: "asyncio.Task[dict[str, object]] | None" = None
    execution: BatchExecution | None = None
    ended_because: str = ""
    engine_died: bool = False
    left_over: dict[str, InFlight] = field(default_factory=dict)
    settled: bool = False
    stuck: bool = False
    released: bool = False

    def end(self, because: str, *, engine_died: bool = False) -> None:
        """Stop working on it; it ends once."""
        if self.ended_because:
            return
        self.ended_because, self.engine_died = because, engine_died
        self.left_over = dict(self.execution.in_flight) if self.execution else {}
        if self.work is not None:
            self.work.cancel()

    def to_accuse(self) -> list[int]:
        """Prompts whose requests were left over and whose count of deaths is not right yet."""
        return [place.index for place in self.left_over.values() if place.accused != self.engine_died]


class Deliveries:
    """The deliveries of one worker. `active` counts all; `settled` those whose prompts wait for slots or have them."""

    def __init__(
        self,
        app: Celery,
        worker: str,
        ledger: Ledger,
        shards: ShardRoom,
        bench: Bench,
        on_free: Callable[[], None],
    ) -> None:
        self._app = app
        self._worker = worker
        self._ledger = ledger
        self._shards = shards
        self._bench = bench
        self._on_free = on_free
        self._background: set[asyncio.Task[None]] = set()
        self.open: dict[str, OpenBatch] = {}
        self.active = 0
        self.settled = 0
        self.completed = 0
        self.failed = 0
        self.draining = False
        self.refuses = ""
        self._refused = 0
        self.engine_info: EngineInfo | None = None

    async def deliver(self, message: BatchMessage) -> str:
        """Follow one message to its end.

        Returns:
            The name of the event that it ended in.
        """
        begun = time.monotonic()
        self.active += 1
        try:
            event, fields = await self._deliver(message, begun)
        finally:
            self.active -= 1
        log.info(event, run=message.run, batch=message.batch, wall_s=round(time.monotonic() - begun, 2), **fields)
        return event

    def hand_back_all(self, because: str, *, engine_died: bool = False) -> None:
        """Put every open batch back into the queue now."""
        for batch in list(self.open.values()):
            batch.end(because, engine_died=engine_died)

    def push_soon(self, run: str, batch: str) -> None:
        """Push a batch's message again, without making the caller wait for the store or Redis."""
        task = asyncio.create_task(self._push(run, batch))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _deliver(self, message: BatchMessage, begun: float) -> Ending:
        if self.draining or not self._bench.health.serves:
            await self._push(message.run, message.batch)
            return "batch.put_back", {"because": "draining" if self.draining else "engine sick"}
        claimed = await self._ledger.claim(message.run, message.batch, self.engine_info.model if self.engine_info else "")
        if claimed.outcome == "other_model":
            return await self._refuse(message, claimed.owner)
        self.refuses = ""
        if claimed.claim is None:
            return _NOT_CLAIMED[claimed.outcome], {"owner": claimed.owner} if claimed.owner else {}
        batch = OpenBatch(message, claimed.claim, taken_at=begun)
        if self.draining:  # since the claim was asked for: nobody would hand it back
            await self._give_back(batch)
            return "batch.put_back", {"because": "draining"}
        self.open[batch.claim.token] = batch
        passing = asyncio.get_running_loop().call_later(STUCK_AFTER_S, self._let_others_pass, batch)
        try:
            return await self._work_on(batch, claimed)
        finally:
            passing.cancel()
            del self.open[batch.claim.token]
            self.settled -= batch.settled
            self._on_free()

    async def _refuse(self, message: BatchMessage, wanted: str) -> Ending:
        """Leave a batch to workers whose engines serve its model; slowly, as they may all be busy."""
        serves = self.engine_info.model if self.engine_info else ""
        self.refuses = f"run {message.run} wants model {wanted}, the engine serves {serves}"
        passed = self._refused < MAX_REFUSED  # then the next message is taken meanwhile
        self._refused += passed
        self.settled += passed
        self._on_free()
        try:
            await asyncio.sleep(REFUSED_PAUSE_S)
        finally:
            self._refused -= passed
            self.settled -= passed
        await self._push(message.run, message.batch, recovered=False)  # behind the others, or they would never be seen
        return "batch.refused", {"because": self.refuses, "next": "another worker takes it; or see FLEET_MODEL"}

    async def _work_on(self, batch: OpenBatch, claimed: Claimed) -> Ending:
        batch.work = asyncio.create_task(self._complete(batch, claimed))
        attempt: dict[str, object] = {"attempt": batch.claim.attempt}
        try:
            return "batch.completed", {**attempt, **await batch.work}
        except asyncio.CancelledError:
            await self._bench.engine.abort(list(batch.left_over) if self._bench.health.serves else [])
            await self._ledger.accuse(batch.claim, batch.to_accuse(), 1 if batch.engine_died else -1)
            if batch.ended_because == LOST:
                return "batch.lost", attempt
            if batch.ended_because == CANCELLED and batch.execution is not None:
                return "batch.cancelled", {**attempt, **await self._store(batch, batch.execution.cut_short())}
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
            await asyncio.sleep(min(LONGEST_PAUSE_S, 2.0**batch.claim.attempt))
            await self._give_back(batch)
            return "batch.retried", {**attempt, "cause": str(error)[:CAUSE_LENGTH]}

    async def _complete(self, batch: OpenBatch, claimed: Claimed) -> dict[str, object]:
        message, claim = batch.message, batch.claim
        if claimed.lapses >= MAX_LAPSES:
            raise WorkersLost(f"{claim.run}/{claim.batch}", claimed.lapses)
        manifest = await self._shards.manifest(message.run, message.made)
        prompts, stored = await asyncio.gather(self._shards.prompts(message), self._shards.stored(claim.run, claim.batch))
        if stored is not None:
            log.info("shard.exists", run=claim.run, batch=claim.batch, next="nothing is generated")
            return await self._commit(batch, stored)
        batch.execution = BatchExecution(
            self._bench,
            manifest.sampling,
            lambda: self._origin(claim),
            prompts,
            claimed.kept,
            keep=lambda outcome: self._ledger.checkpoint(claim, outcome),
            accuse=lambda indices, change: self._ledger.accuse(claim, indices, change),
            deaths=Deaths(dict(claimed.deaths), watched=claimed.lapses > 0),
        )
        self._settle(batch)
        self._bench.slots.batch_arrived(time.monotonic() - batch.taken_at)
        if claimed.cancelled:
            return await self._store(batch, batch.execution.cut_short())
        return {**await self._store(batch, await batch.execution.run()), "resumed": len(claimed.kept)}

    async def _store(self, batch: OpenBatch, outcomes: list[Completion]) -> dict[str, object]:
        return await self._commit(batch, await self._shards.write(batch.claim.run, batch.claim.batch, outcomes))

    async def _commit(self, batch: OpenBatch, stored: StoredShard) -> dict[str, object]:
        claim = batch.claim
        _, status = await self._ledger.commit(claim, stored.counts, stored.shard_bytes)
        self.completed += stored.counts.completed
        self.failed += stored.counts.failed
        if status == "complete":
            log.info("run.complete", run=claim.run)
        counts = stored.counts
        return {
            "prompts": counts.completed + counts.failed,
            "failed": counts.failed,
            "completion_tokens": counts.completion_tokens,
        }

    def _origin(self, claim: Claim) -> Provenance:
        info = self.engine_info
        return Provenance(
            worker=self._worker,
            engine_version=info.version if info else None,
            model=info.model if info else None,
            attempt=claim.attempt,
        )

    def _settle(self, batch: OpenBatch) -> None:
        """Its prompts wait for slots: it is no longer on its way, so the next may be taken when they run low."""
        self.settled += not batch.settled
        batch.settled, batch.stuck = True, False

    def _let_others_pass(self, batch: OpenBatch) -> None:
        if not batch.settled and sum(other.stuck for other in self.open.values()) < MAX_STUCK:
            self._settle(batch)
            batch.stuck = True
            log.warning("batch.waits", run=batch.claim.run, batch=batch.claim.batch, next="others pass it")
            self._on_free()

    async def _park(self, batch: OpenBatch, cause: BaseException) -> Ending:
        told = str(cause)[:CAUSE_LENGTH]
        batch.released = True
        await self._ledger.release(batch.claim, parked_because=told)
        return "batch.dead_lettered", {"attempt": batch.claim.attempt, "cause": told}

    async def _give_back(self, batch: OpenBatch) -> None:
        batch.released = True
        if await self._ledger.release(batch.claim):
            await self._push(batch.claim.run, batch.claim.batch)

    async def _push(self, run: str, batch: str, *, recovered: bool = True) -> None:
        try:
            message, priority = await self._shards.message(run, batch)
            await asyncio.to_thread(push, self._app, message, priority, recovered=recovered)
        except (FleetError, OperationalError) as error:  # the sweep finds a batch without a message
            log.warning("push.failed", run=run, batch=batch, cause=str(error), next="the sweep pushes it")
