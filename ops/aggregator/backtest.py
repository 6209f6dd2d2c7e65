"""What was predicted against what came: predictions are kept at fixed shares of a run, and judged when it has ended. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

MARKS = (5, 25, 50, 75)
"""Percent of a run's prompts."""


class Prediction(msgspec.Struct, frozen=True, array_like=True):
    """Made at `at_s` (UNIX seconds), when `mark` percent were finished; `p90_s` is None while the spread was not known."""

    mark: int
    at_s: float
    p50_s: float
    p90_s: float | None = None


@dataclass(frozen=True)
class Judged:
    """A prediction with what came. `off` is (predicted − actual) ÷ actual: above 0, it took less time than was said."""

    prediction: Prediction
    actual_s: float

    @property
    def off(self) -> float:
        """Relative to the time that was really left."""
        return (self.prediction.p50_s - self.actual_s) / self.actual_s if self.actual_s > 0 else 0.0

    @property
    def within_p90(self) -> bool | None:
        """Whether it ended by P90; None if there was none."""
        return None if self.prediction.p90_s is None else self.actual_s <= self.prediction.p90_s

    def as_document(self) -> dict[str, object]:
        """For scripts."""
        return {
            "made_at_percent": self.prediction.mark,
            "predicted_s": round(self.prediction.p50_s, 1),
            "predicted_p90_s": None if self.prediction.p90_s is None else round(self.prediction.p90_s, 1),
            "actual_s": round(self.actual_s, 1),
            "off": round(self.off, 4),
            "within_p90": self.within_p90,
        }


def due(finished: int, total: int, made: Iterable[int]) -> int | None:
    """The mark that a prediction is due for, or None. Marks that were passed unseen are left out: their moment is gone."""
    if total <= 0 or finished >= total:
        return None
    reached = [mark for mark in MARKS if finished * 100 >= mark * total]
    return reached[-1] if reached and reached[-1] not in set(made) else None


def judged(predictions: Iterable[Prediction], finished_at_s: float) -> list[Judged]:
    """Each prediction of a run that has ended, by its mark."""
    return [
        Judged(one, finished_at_s - one.at_s)
        for one in sorted(predictions, key=lambda one: one.mark)
        if finished_at_s >= one.at_s
    ]
