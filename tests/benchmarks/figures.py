"""One figure of a benchmark."""

from typing import Any


def figure(
    name: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """A row of the table, with what is wanted and whether it is met."""
    wanted, ok = "", True
    if at_least is not None:
        wanted, ok = f"≥ {at_least:g}", value >= at_least
    if at_most is not None:
        wanted, ok = f"≤ {at_most:g}", value <= at_most
    return {"figure": name, "value": value, "unit": unit, "wanted": wanted, "ok": ok}
