"""`make bench [ONLY=name]`: run the benchmarks, print a table, write out/bench.json."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import enqueueing, memory, worker

BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "heavy-tail": worker.heavy_tail,
    "ceiling": worker.ceiling,
    "enqueue": enqueueing.million_rows,
    "memory": memory.worker_memory,
}


def main() -> None:
    """Run those that are named, or all."""
    chosen = sys.argv[1:] or list(BENCHMARKS)
    rows = []
    for name in chosen:
        begun = time.monotonic()
        print(f"{name} …", file=sys.stderr, flush=True)  # noqa: T201
        rows += [{"benchmark": name, **row} for row in BENCHMARKS[name]()]
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
    table = Table("benchmark", "figure", "value", "wanted", "")
    for row in rows:
        table.add_row(
            row["benchmark"], row["figure"], f"{row['value']:,.3g} {row['unit']}", row["wanted"], "ok" if row["ok"] else "short"
        )
    Console().print(table)
    out = Path("out") / "bench.json"
    out.parent.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.platform()}
    out.write_text(json.dumps({"machine": machine, "at": time.time(), "figures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
