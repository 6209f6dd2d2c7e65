"""One batch from its prompts to their outcomes. Knows neither Celery nor Redis nor the store.

A batch is no barrier: prompts of many batches wait for the same slots. Every outcome is handed to `keep` at once; what `keep`
returns is what counts (another worker may have been first). A prompt that was in flight at a death of its engine or worker is a
suspect (workers/suspects.py): each of its requests is counted by `accuse` before it leaves, and taken back if nothing died.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from workers.answers import Generated, InvalidAnswer
from workers.contract.errors import EngineOverloaded, EngineUnavailable, FleetError, PromptRejected
from workers.contract.schema import Completion, Prompt, Provenance, Sampling
from workers.engine import Engine, new_request_id
from workers.health import EngineHealth
from workers.quality import ANOTHER_TRY_HELPS, Verdict, judge
from workers.retry import BadAnswer, GiveUp, RetryPolicy, next_step
from workers.slots import Slots
from workers.suspects import MAX_DEATHS, SuspectLane

Keep = Callable[[Completion], Awaitable[Completion]]
Accuse = Callable[[Mapping[str, int], bool], Awaitable[None]]
"""Requests → index of their prompt, and whether the engine died under them."""


@dataclass(frozen=True)
class Bench:
    """What every batch of one worker shares: its engine, the state of it, the slots, the suspects, the bounds of retries."""

    engine: Engine
    health: EngineHealth
    slots: Slots
    policy: RetryPolicy
    jitter: random.Random
    suspects: SuspectLane = field(default_factory=SuspectLane)


@dataclass
class Deaths:
    """What earlier deliveries of the batch saw, and this one sees: index → requests of that prompt in flight at a death.

    `watched` if a worker fell silent with the batch in hand: which prompts it had in flight then is not known.
    """

    seen: dict[int, set[str]]
    watched: bool = False

    def of(self, index: int) -> int:
        """Deaths under one prompt; one that was in flight at a second death of a worker was so, perhaps, at the first."""
        seen = len(self.seen.get(index, ()))
        return seen + (1 if self.watched and seen else 0)


@dataclass(frozen=True)
class Request:
    """A request at the engine: of which prompt, and whether it is marked already, as if the engine had died under it."""

    id: str
    index: int
    marked: bool


class BatchExecution:
    """The prompts of one batch, as far as this worker has brought them."""

    def __init__(
        self,
        bench: Bench,
        sampling: Sampling,
        provenance: Callable[[], Provenance],
        prompts: Sequence[Prompt],
        kept: Mapping[int, Completion],
        keep: Keep,
        accuse: Accuse,
        deaths: Deaths,
        model: str | None = None,
    ) -> None:
        """Take a batch.

        Args:
            bench: Of the worker.
            sampling: Of the run.
            provenance: What all rows share now; the engine may come back as another version.
            prompts: Of the batch, in order.
            kept: Outcomes from earlier deliveries, by index; these are not generated again.
            keep: Keeps an outcome at once, and returns the one that counts.
            accuse: Counts deaths of the engine under prompts.
            deaths: Counted so far.
            model: That the run names.
        """
        self._bench = bench
        self._sampling = sampling
        self._provenance = provenance
        self._prompts = prompts
        self._outcomes = dict(kept)
        self._keep = keep
        self._accuse = accuse
        self._deaths = deaths
        self._model = model
        self.unsettled: dict[str, Request] = {}

    async def run(self) -> list[Completion]:
        """Bring every prompt to its outcome.

        Returns:
            Shape (len(prompts),), in order of the batch.
        """

        async def bring(index: int) -> None:
            self._outcomes[index] = await self._keep(await self._outcome(index, self._prompts[index]))

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(len(self._prompts)):
                    if index not in self._outcomes:
                        group.create_task(bring(index))
        except* Exception as errors:  # noqa: BLE001  (the first failure is the batch's, unwrapped)
            raise errors.exceptions[0] from None
        return [self._outcomes[index] for index in range(len(self._prompts))]

    def cut_short(self) -> list[Completion]:
        """Its outcomes now, shape (len(prompts),): prompts without one have failed as `cancelled`."""
        cancelled = GiveUp("cancelled", "the run was cancelled before this prompt was answered")
        origin = self._provenance()
        return [
            self._outcomes.get(index) or self._failed(index, prompt, cancelled, None, origin)
            for index, prompt in enumerate(self._prompts)
        ]

    async def _outcome(self, index: int, prompt: Prompt) -> Completion:
        sampling = self._sampling if prompt.sampling is None else self._sampling.overridden_by(prompt.sampling)
        if sampling.seed is not None and prompt.sample:
            sampling = msgspec.structs.replace(sampling, seed=sampling.seed + prompt.sample)
        begun, tries, waits, waited_s = time.time(), 0, 0, 0.0
        while True:
            deaths = self._deaths.of(index)
            if deaths >= MAX_DEATHS:
                silent = GiveUp("engine_lost", f"its worker fell silent with this prompt in flight, {deaths} times")
                return self._failed(index, prompt, silent, None, self._origin("", tries, begun, 0.0))
            await self._bench.health.serving()
            async with self._bench.suspects.turn(deaths):
                request = Request(new_request_id(), index, marked=self._deaths.watched or deaths > 0)
                async with self._bench.slots.take():
                    tries += 1
                    tried_at = time.monotonic()
                    try:
                        generated, verdict = await self._one_try(request, prompt, sampling)
                        origin = self._origin(request.id, tries, begun, time.monotonic() - tried_at)
                        return self._answered(index, prompt, generated, verdict, origin)
                    except (PromptRejected, EngineOverloaded, EngineUnavailable, BadAnswer) as error:
                        failure: FleetError = error
                    origin = self._origin(request.id, tries, begun, time.monotonic() - tried_at)
                deaths = await self._deaths_after(request, failure)
            policy, jitter = self._bench.policy, self._bench.jitter
            step = next_step(failure, tries, waited_s, policy, jitter, waits=waits, deaths=deaths)
            if isinstance(step, GiveUp):
                return self._failed(index, prompt, step, failure, origin)
            tries -= 0 if step.counts else 1
            waits += 1
            waited_s += step.after_s
            with self._bench.slots.held_back():
                await asyncio.sleep(step.after_s)

    async def _deaths_after(self, request: Request, failure: FleetError) -> int:
        """Deaths under the prompt so far, if the engine died under this request; else 0."""
        died = False
        if isinstance(failure, EngineOverloaded):
            await self._bench.health.overloaded(failure)
        if isinstance(failure, EngineUnavailable) and failure.kind != "timeout":
            died = await self._bench.health.found_dead(failure) and failure.kind == "lost"
        if died != request.marked:
            await self._accuse({request.id: request.index}, died)
        seen = self._deaths.seen.setdefault(request.index, set())
        (seen.add if died else seen.discard)(request.id)
        del self.unsettled[request.id]
        return self._deaths.of(request.index) if died else 0

    async def _one_try(self, request: Request, prompt: Prompt, sampling: Sampling) -> tuple[Generated, Verdict]:
        self.unsettled[request.id] = request
        if request.marked:
            await self._accuse({request.id: request.index}, True)
        try:
            generated = await self._bench.engine.generate(prompt, sampling, request.id, self._model)
        except InvalidAnswer as error:
            raise BadAnswer("invalid_response", str(error)) from error
        self._bench.health.answered()
        verdict = judge(prompt, generated)
        if verdict.reason in ANOTHER_TRY_HELPS:
            raise Rejected(verdict, generated)
        del self.unsettled[request.id]
        return generated, verdict

    def _origin(self, request_id: str, tries: int, begun: float, latency_s: float) -> Provenance:
        return msgspec.structs.replace(
            self._provenance(), request_id=request_id, tries=tries, started_at=round(begun, 3), latency_s=round(latency_s, 4)
        )

    def _answered(self, index: int, prompt: Prompt, generated: Generated, verdict: Verdict, origin: Provenance) -> Completion:
        good = verdict.reason is None
        return Completion(
            index=index,
            id=prompt.id,
            row=prompt.row,
            sample=prompt.sample,
            status="ok" if good else "failed",
            reason=verdict.reason,
            message=verdict.message,
            answer=generated.answer if good else None,
            rejected=None if good else generated.answer,
            finish_reason=generated.finish,
            matched_stop=generated.matched,
            usage=generated.usage,
            flags=verdict.flags,
            provenance=msgspec.structs.replace(
                origin, spec_verify_ct=generated.spec_verify_ct, retractions=generated.retractions
            ),
        )

    def _failed(self, index: int, prompt: Prompt, step: GiveUp, failure: FleetError | None, origin: Provenance) -> Completion:
        if isinstance(failure, Rejected):
            return self._answered(index, prompt, failure.generated, failure.verdict, origin)
        return Completion(
            index=index,
            id=prompt.id,
            row=prompt.row,
            sample=prompt.sample,
            status="failed",
            reason=step.reason,
            message=step.message,
            provenance=origin,
        )


class Rejected(BadAnswer):
    """A judged answer that another try may better; it is kept if no try does."""

    def __init__(self, verdict: Verdict, generated: Generated) -> None:
        super().__init__(verdict.reason or "", verdict.message or "")
        self.verdict, self.generated = verdict, generated
