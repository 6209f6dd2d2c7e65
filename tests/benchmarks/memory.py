"""Memory of a worker over a hundred thousand prompts: flat."""

from typing import Any

import psutil

from ops.quickstart.processes import wait_until
from tests.benchmarks.bench_fleet import bench_fleet
from tests.benchmarks.figures import figure

PROMPTS = 100_000
RUN_WITHIN_S = 300.0
MEGABYTE = 1e6


def worker_memory() -> list[dict[str, Any]]:
    """Resident memory after the first tenth and at the end."""
    with bench_fleet() as fleet:
        fleet.engine(
            "gpu0", "--tokens-per-second", "0", "--mean-tokens", "100", "--max-running", "1000", "--context-length", "200000"
        )
        child = fleet.worker("gpu0", FLEET_SLOTS="96")
        done = fleet.producer("enqueue", str(fleet.prompts(PROMPTS)), "--run", "r", "--max-tokens", "100000", "--json")
        if done.code:
            raise RuntimeError(done.err)
        process = psutil.Process(child.pid)
        wait_until(lambda: fleet.counted() > PROMPTS // 10, RUN_WITHIN_S, "a tenth of the run")
        early_mb = process.memory_info().rss / MEGABYTE
        fleet.wait_complete("r", RUN_WITHIN_S)
        late_mb = process.memory_info().rss / MEGABYTE
    return [
        figure("worker after 10,000 prompts", early_mb, "MB", at_most=150),
        figure("worker after 100,000 prompts", late_mb, "MB", at_most=150),
        figure("growth", late_mb / early_mb, "×", at_most=1.15),
    ]
