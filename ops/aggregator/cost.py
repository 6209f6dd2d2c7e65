"""Money: what a run has cost, will cost, and what was paid for slots that stood empty. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """In dollars; None where a figure cannot be known yet. All are shares of the whole fleet's price over the run's time."""

    so_far: float
    at_end: float | None
    per_million_output_tokens: float | None
    idle: float | None

    def as_document(self) -> dict[str, float | None]:
        """For scripts."""
        return {
            "cost_usd": round(self.so_far, 4),
            "cost_at_end_usd": None if self.at_end is None else round(self.at_end, 4),
            "cost_per_million_output_tokens_usd": (
                None if self.per_million_output_tokens is None else round(self.per_million_output_tokens, 4)
            ),
            "cost_idle_usd": None if self.idle is None else round(self.idle, 4),
        }


def cost_of(usd_per_hour: float, elapsed_s: float, left_s: float | None, output_tokens: int, busy_share: float | None) -> Cost:
    """The cost of a run.

    Args:
        usd_per_hour: Of the whole fleet.
        elapsed_s: Seconds since the run was created, until it ended.
        left_s: Seconds that are left (P50), if that is known; 0 of a complete run.
        output_tokens: That were generated.
        busy_share: Of the fleet's slots over its lifetime, 0 to 1; None if no worker tells.
    """
    so_far = usd_per_hour * elapsed_s / 3600
    return Cost(
        so_far=so_far,
        at_end=None if left_s is None else so_far + usd_per_hour * left_s / 3600,
        per_million_output_tokens=so_far / output_tokens * 1e6 if output_tokens else None,
        idle=None if busy_share is None else so_far * (1 - busy_share),
    )
