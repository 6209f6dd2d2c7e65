"""Every metric of the aggregator, in one table; `/metrics` reads the fleet's document through it.

Names follow Prometheus' rules (base units, `_total` for counters). Labels are runs, workers, reasons, flags, kinds: none grows
with the length of a run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from workers.progress.figures import Document

Source = Literal["fleet", "run", "worker"]


@dataclass(frozen=True)
class Definition:
    """One metric: where its value stands in the document, and what it means."""

    name: str
    kind: Literal["gauge", "counter"]
    source: Source
    field: str
    meaning: str
    label: str = ""
    """For a field that is a mapping: the label that its keys become."""


METRICS = (
    Definition("fleet_queued_batches", "gauge", "fleet", "queued_batches", "batches that wait in the queue"),
    Definition("fleet_redis_memory_bytes", "gauge", "fleet", "redis_memory_bytes", "memory that Redis uses"),
    Definition(
        "fleet_redis_memory_limit_bytes", "gauge", "fleet", "redis_memory_limit_bytes", "maxmemory of Redis, if it has one"
    ),
    Definition("fleet_workers", "gauge", "fleet", "workers", "workers that were heard of within half a minute"),
    Definition("fleet_slots", "gauge", "fleet", "slots", "requests that all workers may have in flight"),
    Definition("fleet_in_flight", "gauge", "fleet", "in_flight", "requests that all workers have in flight"),
    Definition("fleet_busy_ratio", "gauge", "fleet", "busy_share", "slots that were busy over the workers' lifetimes, 0 to 1"),
    Definition("fleet_accept_length", "gauge", "fleet", "accept_length", "tokens by verify step, each summed over the engines"),
    Definition("fleet_run_prompts", "gauge", "run", "total", "prompts of the run"),
    Definition(
        "fleet_run_completed_prompts", "gauge", "run", "completed", "prompts with an answer; a repair may take some back"
    ),
    Definition("fleet_run_failed_prompts", "gauge", "run", "failed", "prompts that failed; a repair takes them back"),
    Definition("fleet_run_pending_prompts", "gauge", "run", "pending", "prompts without an outcome"),
    Definition("fleet_run_failures", "gauge", "run", "failures", "failed prompts by reason", "reason"),
    Definition("fleet_run_flags", "gauge", "run", "flags", "prompts by quality flag", "flag"),
    Definition("fleet_run_input_tokens_total", "counter", "run", "total_input_tokens", "tokens of the prompts"),
    Definition("fleet_run_output_tokens_total", "counter", "run", "total_output_tokens", "tokens of the answers"),
    Definition("fleet_run_prompts_per_second", "gauge", "run", "rate_per_sec", "over the last minute"),
    Definition("fleet_run_left_seconds", "gauge", "run", "eta_seconds", "time left, by quantile", "quantile"),
    Definition("fleet_run_elapsed_hours", "gauge", "run", "elapsed_hours", "since the run was created, until it ended"),
    Definition("fleet_run_batches", "gauge", "run", "batches", "batches of the run and its repairs"),
    Definition("fleet_run_done_batches", "gauge", "run", "batches_done", "batches that are stored and counted"),
    Definition("fleet_run_shard_bytes", "gauge", "run", "shard_bytes", "bytes of completions in the store"),
    Definition("fleet_run_cost_usd", "gauge", "run", "cost_usd", "cost so far, of the whole fleet over the run's time"),
    Definition("fleet_worker_slots", "gauge", "worker", "slots", "requests that it may have in flight"),
    Definition("fleet_worker_in_flight", "gauge", "worker", "in_flight", "requests that it has in flight"),
    Definition("fleet_worker_waiting_prompts", "gauge", "worker", "unstarted", "prompts at hand that wait for a slot"),
    Definition("fleet_worker_open_batches", "gauge", "worker", "open_batches", "batches that it holds"),
    Definition("fleet_worker_unwritten_batches", "gauge", "worker", "unwritten", "finished batches that wait for the store"),
    Definition("fleet_worker_completed_prompts_total", "counter", "worker", "completed", "answers since it started, all runs"),
    Definition("fleet_worker_failed_prompts_total", "counter", "worker", "failed", "failures since it started, all runs"),
    Definition("fleet_worker_prompts_per_second", "gauge", "worker", "prompts_per_sec", "over the last minute"),
    Definition("fleet_worker_seen_seconds_ago", "gauge", "worker", "seen_s_ago", "when it was last heard of"),
    Definition("fleet_worker_loop_lag_seconds", "gauge", "worker", "loop_lag_s", "worst delay of its event loop lately"),
    Definition(
        "fleet_worker_store_write_seconds", "gauge", "worker", "store_write_s", "duration of its last write to the store"
    ),
    Definition(
        "fleet_engine_decoded_tokens_per_second", "gauge", "worker", "decoded_tokens_per_sec", "of its engine's counter"
    ),
    Definition("fleet_engine_running_requests", "gauge", "worker", "engine_running", "requests that decode"),
    Definition("fleet_engine_queued_requests", "gauge", "worker", "engine_queued", "requests that wait at the engine"),
    Definition("fleet_engine_running_limit", "gauge", "worker", "engine_running_limit", "requests that can decode at once"),
    Definition("fleet_engine_kv_usage_ratio", "gauge", "worker", "engine_kv_usage", "of the KV cache, 0 to 1"),
    Definition(
        "fleet_engine_state_usage_ratio", "gauge", "worker", "engine_state_usage", "of the state slots of hybrid models"
    ),
    Definition("fleet_engine_accept_length", "gauge", "worker", "engine_accept_length", "tokens by verify step of its engine"),
    Definition("fleet_gpu_utilization_ratio", "gauge", "worker", "gpu_utilization", "of its engine's GPU, 0 to 1"),
    Definition("fleet_gpu_power_watts", "gauge", "worker", "gpu_power_w", "of its engine's GPU"),
    Definition("fleet_gpu_memory_used_bytes", "gauge", "worker", "gpu_memory_used_bytes", "of its engine's GPU"),
    Definition("fleet_gpu_temperature_celsius", "gauge", "worker", "gpu_temperature_c", "of its engine's GPU"),
)
BOTTLENECK = ("fleet_worker_bottleneck", "1 for what bounds the worker now, by kind")
ALARMS = ("fleet_alarms", "things that somebody should look at, by kind")
STATUS = ("fleet_run_status", "1 for the status that the run has")
UPDATED = ("fleet_aggregator_updated_timestamp_seconds", "when Redis was last read, on its own clock")


class FleetCollector(Collector):
    """Turns the newest document into metrics each time that Prometheus asks."""

    def __init__(self, newest: Callable[[], Document | None]) -> None:
        self._newest = newest

    def collect(self) -> Iterator[Metric]:
        """One family for each metric that has a value."""
        document = self._newest()
        if document is None:
            return
        yield _one(*UPDATED, {}, [((), cast("float", document["at"]))])
        for definition in METRICS:
            yield _family(definition, document)
        workers, runs = _rows(document, "workers"), _rows(document, "runs")
        yield _one(*BOTTLENECK, ("worker", "kind"), [((str(one["name"]), str(one["bottleneck"])), 1.0) for one in workers])
        yield _one(*STATUS, ("run", "status"), [((str(one["run"]), str(one["status"])), 1.0) for one in runs])
        kinds = [str(alarm["kind"]) for alarm in _rows(document, "alarms")]
        yield _one(*ALARMS, ("kind",), [((kind,), float(kinds.count(kind))) for kind in sorted(set(kinds))])


def exposition(newest: Callable[[], Document | None]) -> bytes:
    """The body of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FleetCollector(newest))
    return generate_latest(registry)


def _one(name: str, meaning: str, labels: Iterable[str], samples: list[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family


def _family(definition: Definition, document: Document) -> Metric:
    kind: Any = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
    base = [] if definition.source == "fleet" else [definition.source]
    family: Metric = kind(
        definition.name, definition.meaning, labels=[*base, *([definition.label] if definition.label else [])]
    )
    for name, row in _sources(definition.source, document):
        value = row.get(definition.field)
        pairs = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, number in pairs:
            if isinstance(number, int | float):
                family.add_metric([*([name] if base else []), *([str(key)] if definition.label else [])], float(number))  # type: ignore[attr-defined]
    return family


def _sources(source: Source, document: Document) -> list[tuple[str, Mapping[str, Any]]]:
    if source == "fleet":
        return [("", {**document, **cast("Mapping[str, Any]", document["fleet"])})]
    if source == "run":
        return [(str(row["run"]), row) for row in _rows(document, "runs")]
    return [(str(row["name"]), row) for row in _rows(document, "workers")]


def _rows(document: Document, name: str) -> list[Mapping[str, Any]]:
    return cast("list[Mapping[str, Any]]", document[name])
