"""What the simulated engine tells of itself: server_info, loads, metrics. Pure, from recorded answers with live values."""

import os
import time
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ops.simulator.engine import KV_TOKENS_PER_SLOT, EngineOptions, SimulatedEngine
from ops.simulator.wire import OLD

Json = dict[str, Any]


@cache
def recorded(version: str) -> Json:
    """server_info, model_info and loads of the real server of a version."""
    found: Json = msgspec.json.decode((Path(__file__).parent / "recorded" / f"{version}.json").read_bytes())
    return found


def kv_tokens(options: EngineOptions) -> int:
    """Tokens that the KV pool holds."""
    return max(options.context_length, options.max_running * KV_TOKENS_PER_SLOT)


def server_info(engine: SimulatedEngine) -> Json:
    """Every server argument, and the effective limits."""
    options = engine.options
    info: Json = deepcopy(recorded(options.version)["server_info"])
    info |= {
        "served_model_name": options.model,
        "model_path": options.model,
        "tokenizer_path": options.model,
        "context_length": options.context_length,
        "max_total_num_tokens": kv_tokens(options),
        "max_req_input_len": options.context_length - 6,
        "reasoning_parser": "qwen3" if options.reasoning else None,
        "random_seed": options.lengths.seed,
        "simulated": True,
    }
    inner = info["internal_states"][0]
    inner["effective_max_running_requests_per_dp"] = options.max_running
    inner["last_gen_throughput"] = engine.batch.speed() * engine.batch.running
    return info


def model_info(options: EngineOptions) -> Json:
    """What `/model_info` says."""
    info: Json = {**recorded(options.version)["model_info"], "model_path": options.model, "tokenizer_path": options.model}
    if "served_model_name" in info:
        info["served_model_name"] = options.model
    return {**info, "simulated": True}


def loads(engine: SimulatedEngine) -> Json:
    """What `/v1/loads` says."""
    batch, options = engine.batch, engine.options
    answer: Json = deepcopy(recorded(options.version)["loads"])
    used = used_tokens(engine)
    load = answer["loads"][0]
    load |= {
        "num_running_reqs": batch.running,
        "num_waiting_reqs": batch.queued,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": kv_tokens(options),
        "token_usage": used / kv_tokens(options),
        "gen_throughput": batch.speed() * batch.running,
        "max_running_requests": options.max_running,
        "utilization": batch.running / options.max_running,
    }
    if "aggregate" in answer:
        answer["aggregate"] |= {
            "total_running_reqs": batch.running,
            "total_waiting_reqs": batch.queued,
            "total_used_tokens": used,
        }
        load["num_total_reqs"] = batch.running + batch.queued
    else:
        load["timestamp"] = time.time()
    answer["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return answer


def used_tokens(engine: SimulatedEngine) -> int:
    """Tokens in the KV pool: prompts and what was decoded of the running requests."""
    batch = engine.batch
    return sum(batch.decoded_of(name) for name in list(engine.asks)) + 16 * batch.running


def metrics(engine: SimulatedEngine) -> str:
    """Prometheus text: counters that move with every token, gauges as the real server names them."""
    batch, options = engine.batch, engine.options
    scheduler = f'engine_type="unified",model_name="{options.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    frontend = f'engine_type="unified",model_name="{options.model}"'
    counted = frontend if options.version == OLD else f'engine_type="unified",is_streaming="false",model_name="{options.model}"'
    one_process = scheduler.replace(",pp_rank", f',pid="{os.getpid()}",pp_rank')
    pool, used = kv_tokens(options), used_tokens(engine)
    lines: list[str] = []

    def family(name: str, kind: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# HELP sglang:{name} Simulated.")
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines.extend(f"sglang:{name}{{{labels}}} {value:.10g}" for labels, value in samples)

    decoded = scheduler.replace(",model_name", ',mode="decode",model_name')
    prefilled = scheduler.replace(",model_name", ',mode="prefill_compute",model_name')
    family(
        "realtime_tokens_total", "counter", (decoded, float(int(batch.decoded_total))), (prefilled, engine.prompt_tokens_total)
    )
    family("prompt_tokens_total", "counter", (counted, engine.prompt_tokens_total))
    family("generation_tokens_total", "counter", (counted, engine.completion_tokens_total))
    family("num_requests_total", "counter", (counted, engine.finished))
    family("num_aborted_requests_total", "counter", (frontend, engine.aborted_total))
    family("num_running_reqs", "gauge", (scheduler, batch.running))
    family("num_queue_reqs", "gauge", (scheduler, batch.queued))
    family("gen_throughput", "gauge", (scheduler, batch.speed() * batch.running))
    family("token_usage", "gauge", (scheduler, used / pool))
    family("full_token_usage", "gauge", (scheduler, used / pool))
    family("mamba_usage", "gauge", (scheduler, 0.0))
    family("num_used_tokens", "gauge", (scheduler, used))
    family("kv_used_tokens", "gauge", (scheduler, used))
    family("kv_available_tokens", "gauge", (scheduler, pool - used))
    family("num_retracted_reqs", "gauge", (one_process, 0))
    family("spec_accept_length", "gauge", (scheduler, 0.0))
    family("spec_accept_rate", "gauge", (scheduler, 0.0))
    family("max_total_num_tokens", "gauge", (scheduler, pool))
    family("context_len", "gauge", (scheduler, options.context_length))
    return "\n".join(lines) + "\n"
