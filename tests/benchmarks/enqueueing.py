"""Enqueue a million short rows: time, memory of the producer, memory of Redis."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_fleet import bench_fleet
from tests.benchmarks.figures import figure

ROWS = 1_000_000
_PEAK = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


def million_rows() -> list[dict[str, Any]]:
    """One million rows of about 70 bytes into a folder store."""
    with bench_fleet() as fleet:
        source = fleet.folder / "million.jsonl"
        with source.open("w") as file:
            for number in range(ROWS):
                file.write(json.dumps({"id": f"row-{number}", "prompt": f"Tell me something about number {number}."}) + "\n")
        before = fleet.client.info("memory")["used_memory"]
        argv = [str(Path(sys.executable).with_name("producer")), "enqueue", str(source), "--run", "big", "--json"]
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, *argv], env={**os.environ, **fleet.env}, capture_output=True, text=True, check=True
        )
        seconds = time.monotonic() - begun
        peak_mb = int(done.stdout.splitlines()[-1]) / 1024
        batches = int(fleet.client.hget("fleet:{big}:state", "batches") or 0)
        per_batch = (fleet.client.info("memory")["used_memory"] - before) / batches
    return [
        figure("a million rows", seconds, "s", at_most=130),
        figure("peak memory of the producer", peak_mb, "MB", at_most=300),
        figure("Redis per queued batch", per_batch, "bytes", at_most=2000),
    ]
