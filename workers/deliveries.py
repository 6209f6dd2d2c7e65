"""A worker's batches: each message followed from claim to commit, or back into the queue.

Every delivery ends in exactly one event. Knows the ledger, the store and the engine of the worker; does not know Celery's
consumer (workers/consumer.py) nor who renews the leases (workers/beat.py).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from workers.contract import names
from workers.contract.errors import FleetError, Permanent, RunElsewhere, StaleMessage, WorkersLost
from workers.contract.schema import BatchMessage, Completion, Provenance
from workers.engine import EngineInfo
from workers.execute import BatchExecution, Bench, Deaths, Request
from workers.ledger import Claim, Claimed, Ledger
from workers.publish import push
from workers.shards import ShardRoom, StoredShard

MAX_ERRORS = 8
"""Deliveries of one batch that may end in an error of ours before it is parked for a person."""
MAX_LAPSES = 8
"""Workers that may fall silent with one batch in hand, without one new outcome, before it is parked for a person."""
CAUSE_LENGTH = 300
LONGEST_PAUSE_S = 30.0
LOOK_EVERY_S = 0.5
STUCK_AFTER_S = 2.0
MAX_STUCK = 8
"""Batches that may wait for their input while others pass them: one bad shard must not idle an engine."""

REFUSED_PAUSE_S = 1.0  # shorter than workers/sweep.py waits before it calls a message lost
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
    settled: bool = False
    stuck: bool = False
    released: bool = False
    storing: bool = False
    cancelled: bool = False

    def end(self, because: str, *, engine_died: bool = False) -> None:
        """Stop working on it; it ends once."""
        if self.ended_because:
            return
        self.ended_because, self.engine_died = because, engine_died
        if self.work is not None:
            self.work.cancel()

    @property
    def left_over(self) -> list[Request]:
        """Requests that are at the engine, or whose marks are not right yet."""
        return list(self.execution.unsettled.values()) if self.execution else []


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
        self.prompt_tokens = 0
        self.completion_tokens = 0
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
        except Exception as error:  # Redis was away for too long: the lease lapses, and another worker takes it up
            log.exception("batch.abandoned", run=message.run, batch=message.batch)
            event, fields = "batch.abandoned", {"cause": str(error)[:CAUSE_LENGTH]}
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
        task = asyncio.create_task(self.push_again(run, batch))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _deliver(self, message: BatchMessage, begun: float) -> Ending:
        if self.draining or not self._bench.health.serves:
            await self.push_again(message.run, message.batch)
            return "batch.put_back", {"because": "draining" if self.draining else "engine sick"}
        claimed = await self._ledger.claim(message.run, message.batch, self.engine_info.model if self.engine_info else "")
        if claimed.outcome == "other_model":
            return await self._refuse(message, claimed.owner)
        self.refuses = ""
        if claimed.claim is None:
            return _NOT_CLAIMED[claimed.outcome], {"owner": claimed.owner} if claimed.owner else {}
        batch = OpenBatch(message, claimed.claim, taken_at=begun, cancelled=claimed.cancelled)
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
        same = "if that is the same, set FLEET_MODEL"
        self.refuses = f"run {message.run} wants model {wanted}, the engine serves {serves}; {same}"
        passed = self._refused < MAX_REFUSED  # then the next message is taken meanwhile
        self._refused += passed
        self.settled += passed
        self._on_free()
        try:
            await asyncio.sleep(REFUSED_PAUSE_S)
        finally:
            self._refused -= passed
            self.settled -= passed
        await self.push_again(message.run, message.batch, recovered=False)  # behind the others, or they would never be seen
        return "batch.refused", {"because": self.refuses, "next": "another worker takes it"}

    async def _work_on(self, batch: OpenBatch, claimed: Claimed) -> Ending:
        batch.work = asyncio.create_task(self._complete(batch, claimed))
        attempt: dict[str, object] = {"attempt": batch.claim.attempt}
        try:
            return "batch.completed", {**attempt, **await batch.work}
        except asyncio.CancelledError:
            event, fields = await self._cut_off(batch)
            if not batch.ended_because:  # the job itself was terminated
                raise
            return event, {**attempt, **fields}
        except StaleMessage as error:
            await self._ledger.release(batch.claim)
            return "batch.of_earlier_run", {"cause": str(error)}
        except Permanent as error:
            return await self._park(batch, error)
        except RunElsewhere as error:
            self.refuses = str(error)
            return await self._leave_to_others(batch, claimed, error)
        except Exception as error:
            if claimed.errors + 1 >= MAX_ERRORS:
                return await self._park(batch, error)
            log.exception("batch.error", run=batch.claim.run, batch=batch.claim.batch, **attempt)
            with contextlib.suppress(FleetError):  # what stays marked would count as a death of this worker
                await self._clear_engine(batch)
            await self._pause(min(LONGEST_PAUSE_S, 2.0 ** (claimed.errors + 1)))
            await self._give_back(batch, error=True)
            return "batch.retried", {**attempt, "cause": str(error)[:CAUSE_LENGTH]}

    async def _leave_to_others(self, batch: OpenBatch, claimed: Claimed, error: RunElsewhere) -> Ending:
        """Another worker may have the run's store; that none has it is known after a few."""
        if claimed.errors + 1 >= MAX_ERRORS:
            return await self._park(batch, error)
        await self._pause(min(LONGEST_PAUSE_S, 2.0 ** (claimed.errors + 1)))
        batch.released = True
        if await self._ledger.release(batch.claim, error=True):
            # Its message as it came: what it should be stands in the manifest that is not here.
            await self._push(batch.message, names.DEFAULT_PRIORITY, recovered=False)
        return "batch.refused", {"because": str(error), "next": "another worker takes it"}

    async def _cut_off(self, batch: OpenBatch) -> Ending:
        """Its work was cancelled: leave nothing at the engine, set the marks of its requests right, pass it on or store it."""
        await self._clear_engine(batch)
        if batch.ended_because == LOST:
            return "batch.lost", {}
        if batch.ended_because == CANCELLED and batch.execution is not None:
            return "batch.cancelled", await self._store(batch, batch.execution.cut_short())
        await self._give_back(batch)
        return "batch.handed_back", {"because": batch.ended_because}

    async def _clear_engine(self, batch: OpenBatch) -> None:
        """Leave nothing of a batch at the engine, and its requests marked as what became of them."""
        requests = batch.left_over
        await self._bench.engine.abort([request.id for request in requests] if self._bench.health.serves else [])
        wrong = {request.id: request.index for request in requests if request.marked != batch.engine_died}
        await self._ledger.accuse(batch.claim, wrong, died=batch.engine_died)

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not beyond the beginning of a drain."""
        ends = time.monotonic() + pause_s
        while not self.draining and (left_s := ends - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, LOOK_EVERY_S))

    async def _complete(self, batch: OpenBatch, claimed: Claimed) -> dict[str, object]:
        message, claim = batch.message, batch.claim
        if claimed.lapses >= MAX_LAPSES:
            raise WorkersLost(f"{claim.run}/{claim.batch}", claimed.lapses)
        manifest = await self._shards.manifest(message.run, message.made)
        if message.made not in {0.0, manifest.created_at}:
            raise StaleMessage(f"{claim.run}/{claim.batch}", message.made, manifest.created_at)
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
            accuse=lambda requests, died: self._ledger.accuse(claim, requests, died=died),
            deaths=Deaths(dict(claimed.deaths), watched=claimed.lapses > 0),
            model=manifest.model,
        )
        self._settle(batch)
        self._bench.slots.batch_arrived(time.monotonic() - batch.taken_at)
        if claimed.cancelled:
            return await self._store(batch, batch.execution.cut_short())
        return {**await self._store(batch, await batch.execution.run()), "resumed": len(claimed.kept)}

    async def _store(self, batch: OpenBatch, outcomes: list[Completion]) -> dict[str, object]:
        batch.storing = True
        return await self._commit(batch, await self._shards.write(batch.claim.run, batch.claim.batch, outcomes))

    async def _commit(self, batch: OpenBatch, stored: StoredShard) -> dict[str, object]:
        claim = batch.claim
        _, status = await self._ledger.commit(claim, stored.counts, stored.shard_bytes)
        self.completed += stored.counts.completed
        self.failed += stored.counts.failed
        self.prompt_tokens += stored.counts.prompt_tokens
        self.completion_tokens += stored.counts.completion_tokens
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

    async def _give_back(self, batch: OpenBatch, *, error: bool = False) -> None:
        batch.released = True
        if await self._ledger.release(batch.claim, error=error):
            await self.push_again(batch.claim.run, batch.claim.batch)

    async def push_again(self, run: str, batch: str, *, recovered: bool = True) -> None:
        """Put a batch's message into the queue; if that fails, the sweep will find that it is missing."""
        try:
            message, priority = await self._shards.message(run, batch)
        except FleetError as error:
            _tell_not_pushed(run, batch, error)
        else:
            await self._push(message, priority, recovered=recovered)

    async def _push(self, message: BatchMessage, priority: int, *, recovered: bool) -> None:
        try:
            await asyncio.to_thread(push, self._app, message, priority, recovered=recovered)
        except (FleetError, OperationalError) as error:
            _tell_not_pushed(message.run, message.batch, error)


def _tell_not_pushed(run: str, batch: str, error: Exception) -> None:
    """The sweep finds a batch without a message."""
    log.warning("push.failed", run=run, batch=batch, cause=str(error), next="the sweep pushes it")
