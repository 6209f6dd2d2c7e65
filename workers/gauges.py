"""What an engine tells of itself at work: one reading of `/v1/loads` and `/metrics`, the same for all versions. Pure.

Loads are fresh; gauges of `/metrics` stand still while the scheduler does, so of these only counters and what loads lack are
taken. What an engine does not tell is None, never 0. Source: recordings of 0.5.11 and 0.5.23, tests/golden/sglang.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

PREFIX = "sglang:"
_WANTED = (
    *("realtime_tokens_total", "generation_tokens_total", "num_retracted_requests_total", "full_token_usage", "mamba_usage"),
    *("spec_accept_length", "spec_accept_rate"),
)


class EngineGauges(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading. Usages are shares of 0 to 1; counters (`…_total`) begin at 0 with each start of the engine.

    `decoded_total` moves with every token, `finished_total` when an answer ends. `state_usage` is that of the state slots of
    hybrid models (Mamba), apart from `kv_usage`.
    """

    running: int | None = None
    queued: int | None = None
    running_limit: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
    state_usage: float | None = None
    decoded_total: float | None = None
    finished_total: float | None = None
    retracted_total: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None


def read_gauges(loads: bytes, metrics: str) -> EngineGauges:
    """Take one reading.

    Args:
        loads: Body of `/v1/loads`.
        metrics: Body of `/metrics`; empty without `--enable-metrics`.

    Raises:
        ValueError: One of them is not SGLang's.
    """
    ranks = _ranks(loads)
    told = _told(metrics)
    decoded = [value for labels, value in told.get("realtime_tokens_total", []) if labels.get("mode") == "decode"]
    return EngineGauges(
        running=_sum(_numbers(ranks, "num_running_reqs"), int),
        queued=_sum(_numbers(ranks, "num_waiting_reqs"), int),
        running_limit=_sum(_numbers(ranks, "max_running_requests"), int),
        kv_usage=max(_numbers(ranks, "token_usage"), default=None),
        kv_tokens=_sum(_numbers(ranks, "max_total_num_tokens"), int),
        state_usage=_largest(told, "mamba_usage"),
        decoded_total=_sum(decoded, float),
        finished_total=_total(told, "generation_tokens_total"),
        retracted_total=_total(told, "num_retracted_requests_total"),
        accept_length=_largest(told, "spec_accept_length"),
        accept_rate=_largest(told, "spec_accept_rate"),
    )


Told = dict[str, list[tuple[dict[str, str], float]]]


def _ranks(loads: bytes) -> list[dict[str, Any]]:
    try:
        return msgspec.convert(msgspec.json.decode(loads)["loads"], list[dict[str, Any]])
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise ValueError(f"/v1/loads is not SGLang's: {error}") from error


def _told(metrics: str) -> Told:
    """Samples of the wanted metrics only: the whole page is a thousand lines of histograms."""
    told: Told = {}
    for family in text_string_to_metric_families("\n".join(_lines(metrics.splitlines()))):
        for sample in family.samples:
            told.setdefault(sample.name.removeprefix(PREFIX), []).append((sample.labels, sample.value))
    return told


def _lines(lines: Iterable[str]) -> Iterator[str]:
    wanted = tuple(f"{PREFIX}{name}{{" for name in _WANTED)
    return (line for line in lines if line.startswith(wanted))


def _numbers(ranks: list[dict[str, Any]], name: str) -> list[float]:
    return [rank[name] for rank in ranks if isinstance(rank.get(name), int | float)]


def _sum(values: list[float], kind: type[Any]) -> Any:
    return kind(sum(values)) if values else None


def _total(told: Told, name: str) -> float | None:
    values = [value for _, value in told.get(name, [])]
    return sum(values) if values else None


def _largest(told: Told, name: str) -> float | None:
    """Of all ranks; 0 is what an engine tells of a feature that it does not have."""
    return max((value for _, value in told.get(name, []) if value > 0), default=None)
