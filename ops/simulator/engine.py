"""The simulated engine without HTTP: requests in, answers out, on asyncio's clock."""

import asyncio
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ops.simulator.batching import ContinuousBatch
from ops.simulator.faults import FaultPlan, Kind, Rule
from ops.simulator.lengths import LOOP, LengthModel, prompt_digest, prompt_tokens, words_until
from ops.simulator.wire import ABORTED_IN_QUEUE, Finished, aborted

KV_TOKENS_PER_SLOT = 8192
END_OF_TEXT = 2
"""Token id."""


@dataclass(frozen=True)
class EngineOptions:
    """What the command line says."""

    version: str
    model: str
    max_running: int
    lengths: LengthModel
    tokens_per_s: float
    speed: float
    context_length: int
    max_queued: int | None
    reasoning: bool
    thinking_share: float
    requests_kept: int


class RequestSeen(msgspec.Struct):
    """One request, for `/simulator/requests`. Times are UNIX seconds; `outcome` is running until it has ended."""

    rid: str
    prompt_digest: str
    start: float
    end: float | None = None
    outcome: str = "running"
    tokens: int = 0


@dataclass
class Ask:
    """A request as the engine sees it, whatever its route. `matched` is what ends it before its budget does."""

    rid: str
    body: dict[str, Any]
    max_new_tokens: int
    route: Literal["native", "chat", "completion"]
    thinking: bool
    digest: str = ""
    fault: Rule | None = None
    wanted: int = 0
    matched: int | str | None = END_OF_TEXT
    seen: RequestSeen | None = None
    future: "asyncio.Future[str]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def __post_init__(self) -> None:
        self.digest = prompt_digest(self.body)


class SimulatedEngine:
    """Decodes in virtual batches; `generate` waits as long as the real one would."""

    def __init__(self, options: EngineOptions, plan: FaultPlan) -> None:
        self.options = options
        self.plan = plan
        self.started_at = time.monotonic()
        self._batch = ContinuousBatch(options.max_running, options.tokens_per_s * options.speed)
        self.asks: dict[str, Ask] = {}
        self.requests: deque[RequestSeen] = deque(maxlen=options.requests_kept)
        self.tries: Counter[str] = Counter()
        self.finished = 0
        self.prompt_tokens_total = 0
        self.completion_tokens_total = 0
        self.aborted_total = 0
        self._timer: asyncio.TimerHandle | None = None
        self._plan_since_s = 0.0

    def follow(self, plan: FaultPlan) -> None:
        """From now on these faults, whose times count from now."""
        self._tick()
        self.plan = plan
        self._plan_since_s = self.at_s
        self._tick()
        self._schedule()

    def server_fault(self, kind: Kind) -> Rule | None:
        """A fault of the whole server that holds now."""
        return self.plan.of_the_server(kind, self.at_s - self._plan_since_s)

    @property
    def at_s(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started_at

    @property
    def batch(self) -> ContinuousBatch:
        """The batch as of now."""
        self._tick()
        return self._batch

    def full(self) -> bool:
        """Whether the queue takes no more."""
        limit = self.options.max_queued
        return limit is not None and self.batch.queued >= limit and self.batch.running >= self.options.max_running

    def admit(self, ask: Ask) -> None:
        """Take note of a request, and choose its fault and length."""
        text = ask.body.get("text") or ask.body.get("prompt") or ask.body.get("messages") or ""
        shown = text if isinstance(text, str) else msgspec.json.encode(text).decode() if self.plan.fault else ""
        ask.fault = self.plan.choose(
            shown, ask.digest, self.tries[ask.digest], self.at_s - self._plan_since_s, self.options.lengths.seed
        )
        self.tries[ask.digest] += 1
        self._choose_length(ask)
        ask.seen = RequestSeen(ask.rid, ask.digest, time.time())
        self.requests.append(ask.seen)

    async def generate(self, ask: Ask) -> Finished:
        """Decode an admitted request to its end, or until it is aborted."""
        started_at = time.time()
        self.asks[ask.rid] = ask
        count = min(ask.wanted, ask.max_new_tokens)
        outcome = "finished"
        try:
            if self.options.tokens_per_s > 0 and count > 0:
                self._wake(self._batch.submit(self.at_s, ask.rid, count))
                self._schedule()
                outcome = await ask.future
        finally:
            self.asks.pop(ask.rid, None)
        if outcome != "finished":
            decoded, message = outcome.split(":")
            reason = aborted(message) if message == "Aborted" else ABORTED_IN_QUEUE
            return self._answer(ask, int(decoded), reason, started_at)
        if ask.matched is not None and count == ask.wanted:
            return self._answer(ask, count, {"type": "stop", "matched": ask.matched}, started_at)
        return self._answer(ask, count, {"type": "length", "length": count}, started_at)

    def abort(self, rid: str, everything: bool) -> None:
        """Abort a request and all whose ids begin with its id; what is no request's whole id does nothing."""
        if not everything and rid not in self.asks:
            return
        for name in [name for name in self.asks if everything or name.startswith(rid)]:
            self._end_early(name)

    def forget(self, ask: Ask) -> None:
        """The client has gone."""
        self.close(ask, "disconnected", self._batch.decoded_of(ask.rid))
        self._wake(self._batch.remove(self.at_s, ask.rid))
        self._schedule()

    def close(self, ask: Ask, outcome: str, tokens: int) -> None:
        """Write down how a request ended."""
        if ask.seen is not None and ask.seen.end is None:
            ask.seen.end, ask.seen.outcome, ask.seen.tokens = time.time(), outcome, tokens

    def _end_early(self, name: str) -> None:
        ask = self.asks[name]
        self._tick()
        runs, count = self._batch.is_running(name), self._batch.decoded_of(name)
        self._wake(self._batch.remove(self.at_s, name))
        self.aborted_total += 1
        if not ask.future.done():
            ask.future.set_result(f"{count}:{'Aborted' if runs else 'Abort in waiting queue'}")
        self._schedule()

    def _answer(self, ask: Ask, count: int, reason: dict[str, Any], started_at: float) -> Finished:
        answer = self.decoded(ask, count, reason, started_at)
        self.finished += 1
        self.prompt_tokens_total += answer.prompt_tokens
        self.completion_tokens_total += count
        self.close(ask, reason["type"], count)
        return answer

    def decoded(self, ask: Ask, count: int, reason: dict[str, Any], started_at: float) -> Finished:
        """The first `count` tokens of an answer."""
        words = self._words(ask, count)
        thinking, content = self.split(ask, count)
        text = "".join(content)
        if reason["type"] == "stop" and isinstance(ask.matched, str):
            text = text.partition(ask.matched)[0]
        return Finished(
            rid=ask.rid,
            text=text,
            reasoning="".join(thinking).strip() if thinking else None,
            output_ids=[100 + len(word) for word in words],
            prompt_tokens=0 if reason == ABORTED_IN_QUEUE else prompt_tokens(ask.body),
            reasoning_tokens=self._thought(ask, count),
            reason=reason,
            started_at=started_at,
            finished_at=time.time(),
        )

    def split(self, ask: Ask, count: int) -> tuple[list[str], list[str]]:
        """The first `count` words, thinking and content apart if the request wants them so."""
        words = self._words(ask, count)
        thought = 0 if ask.body.get("separate_reasoning") is False else self._thought(ask, count)
        return words[:thought], words[thought:]

    def _words(self, ask: Ask, count: int) -> list[str]:
        if ask.fault is not None and ask.fault.kind == "repetition":
            return [" " + LOOP[place % len(LOOP)] for place in range(count)]
        return self.options.lengths.words(ask.digest, count)

    def _choose_length(self, ask: Ask) -> None:
        sampling = ask.body if ask.route != "native" else ask.body.get("sampling_params") or {}
        ask.wanted = self.options.lengths.tokens(ask.digest)
        if sampling.get("ignore_eos"):
            ask.wanted, ask.matched = max(1, self.options.context_length - prompt_tokens(ask.body)), None
        stops = sampling.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        if stops and (found := words_until(self._words(ask, min(ask.wanted, ask.max_new_tokens)), stops)):
            ask.wanted, ask.matched = found

    def _thought(self, ask: Ask, count: int) -> int:
        if not (self.options.reasoning and ask.route == "chat" and ask.thinking):
            return 0
        if ask.fault is not None and ask.fault.kind == "cut_in_thinking":
            return count
        return min(count, max(1, int(ask.wanted * self.options.thinking_share)))

    def _tick(self) -> None:
        self._batch.frozen = self.server_fault("hang") is not None
        slow = self.server_fault("slow")
        self._batch.tokens_per_s = self.options.tokens_per_s * self.options.speed * (slow.factor if slow else 1.0)
        self._wake(self._batch.advance(self.at_s))

    def _wake(self, names: list[str]) -> None:
        for name in names:
            ask = self.asks.get(name)
            if ask is not None and not ask.future.done():
                ask.future.set_result("finished")

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_s = self._batch.next_end_s()
        if wait_s is None and not self.asks:
            return
        # With faults the speed may change at any moment, so look again soon.
        longest_s = 0.05 if self.plan.fault else 5.0
        self._timer = asyncio.get_running_loop().call_later(min(longest_s, 5.0 if wait_s is None else wait_s), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._tick()
        self._schedule()
