"""Rates of workers, from the last minute of their counters. Kept in memory: after a restart they are there again in seconds."""

from collections import deque
from collections.abc import Iterable, Mapping

WINDOW_S = 60.0
COUNTERS = (
    *("completed", "failed", "prompt_tokens", "completion_tokens"),
    *("engine_decoded_total", "engine_retracted_total", "busy_slot_seconds"),
)
Reading = tuple[float, dict[str, float]]


class History:
    """Readings of each worker's counters, oldest first, no older than the window."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[Reading]] = {}

    def add(self, at_s: float, workers: Mapping[str, Mapping[str, str]]) -> None:
        """Add one reading of every worker; those that are gone are forgotten."""
        for name in self._readings.keys() - workers.keys():
            del self._readings[name]
        for name, told in workers.items():
            now = {counter: float(told[counter]) for counter in COUNTERS if told.get(counter)}
            readings = self._readings.setdefault(name, deque())
            if readings and _began_anew(readings[-1][1], now):
                readings.clear()
            readings.append((at_s, now))
            while readings[0][0] < at_s - WINDOW_S:
                readings.popleft()

    def rate(self, name: str, counter: str) -> float | None:
        """Of one counter of one worker, per second; None before its second reading."""
        readings = [(at_s, told[counter]) for at_s, told in self._readings.get(name, ()) if counter in told]
        if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
            return None
        return (readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0])

    def grown(self, name: str, counter: str) -> float:
        """How much a counter of one worker grew within the window; 0 before its second reading."""
        values = [told[counter] for _, told in self._readings.get(name, ()) if counter in told]
        return values[-1] - values[0] if len(values) > 1 else 0.0


def _began_anew(before: dict[str, float], now: dict[str, float]) -> bool:
    """A worker or its engine was started again: its counters run from 0."""
    return any(now[name] < before[name] for name in now.keys() & before.keys())


def summed(rates: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
