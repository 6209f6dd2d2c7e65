"""Continuous batching on a virtual clock. Pure: time goes in, finished requests come out.

All running requests decode at the same speed, which falls with their number: one alone at `tokens_per_s`, n of them at
`tokens_per_s / (1 + slope · (n - 1))` each. So what a request has decoded is the growth of one common counter since it
started, and the next one to end is the top of a heap: every step costs O(log n).
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

SLOPE = 0.02
"""At 51 running requests each decodes at half the speed of one alone; the whole batch at 25 times that of one."""
ROUNDING_TOKENS = 1e-3
"""So near its end a request has ended: after days, a smaller rest is less than a step of the clock, and would never pass."""


@dataclass
class _Running:
    name: str
    tokens: int
    started_at_decoded: float


class ContinuousBatch:
    """Running requests up to a limit, the others in a queue, first come first served."""

    def __init__(self, max_running: int, tokens_per_s: float, slope: float = SLOPE) -> None:
        self.max_running = max_running
        self.tokens_per_s = tokens_per_s
        self.frozen = False
        self._slope = slope
        self._now_s = 0.0
        self._decoded = 0.0
        self._running: dict[str, _Running] = {}
        self._ends: list[tuple[float, str]] = []
        self._queue: OrderedDict[str, int] = OrderedDict()
        self.decoded_total = 0.0
        self.busy_slot_seconds = 0.0
        self.most_running = 0

    @property
    def running(self) -> int:
        """Requests that decode."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def speed(self) -> float:
        """Tokens per second of each running request."""
        count = len(self._running)
        return 0.0 if self.frozen or not count else self.tokens_per_s / (1 + self._slope * (count - 1))

    def submit(self, now_s: float, name: str, tokens: int) -> list[str]:
        """Add a request that will decode so many tokens; returns what has ended by now."""
        ended = self.advance(now_s)
        self._queue[name] = tokens
        self._admit()
        return ended

    def advance(self, now_s: float) -> list[str]:
        """Let time pass; returns the requests that end, in their order."""
        ended: list[str] = []
        while self._now_s < now_s:
            speed = self.speed()
            step_s = now_s - self._now_s
            if speed and self._ends:
                step_s = min(step_s, max(0.0, (self._ends[0][0] - self._decoded) / speed))
            self._pass(step_s, speed)
            if not speed:
                break
            while self._ends and self._ends[0][0] <= self._decoded + ROUNDING_TOKENS:
                ended.append(self._end(heapq.heappop(self._ends)[1]))
            self._admit()
        self._now_s = max(self._now_s, now_s)
        return [name for name in ended if name]

    def next_end_s(self) -> float | None:
        """Seconds until the next request ends, if nothing changes before."""
        speed = self.speed()
        if not speed or not self._ends:
            return None
        return max(0.0, (self._ends[0][0] - self._decoded) / speed)

    def decoded_of(self, name: str) -> int:
        """Tokens that a running request has so far; 0 for one that waits."""
        request = self._running.get(name)
        return 0 if request is None else min(request.tokens, int(self._decoded - request.started_at_decoded))

    def is_running(self, name: str) -> bool:
        """Whether a request decodes."""
        return name in self._running

    def remove(self, now_s: float, name: str) -> list[str]:
        """Take a request out; returns what has ended by now."""
        ended = self.advance(now_s)
        if self._queue.pop(name, None) is None and name in self._running:
            self._end(name)
            self._ends = [item for item in self._ends if item[1] != name]
            heapq.heapify(self._ends)
        self._admit()
        return ended

    def _pass(self, step_s: float, speed: float) -> None:
        self.busy_slot_seconds += len(self._running) * step_s
        self._decoded += speed * step_s
        self.decoded_total += speed * step_s * len(self._running)
        self._now_s += step_s

    def _end(self, name: str) -> str:
        return name if self._running.pop(name, None) else ""

    def _admit(self) -> None:
        while self._queue and len(self._running) < self.max_running:
            name, tokens = self._queue.popitem(last=False)
            self._running[name] = _Running(name, tokens, self._decoded)
            heapq.heappush(self._ends, (self._decoded + tokens, name))
        self.most_running = max(self.most_running, len(self._running))
