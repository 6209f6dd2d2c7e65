"""A worker against the bare loop: with heavy-tailed answers, and at its ceiling with answers that take no time."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ops.simulator.lengths import LengthModel
from tests.benchmarks.bench_fleet import bench_fleet
from tests.benchmarks.bounds import greedy_seconds
from tests.benchmarks.figures import figure
from tests.fleet.harness import FleetUnderTest, get_json

TAIL_SLOTS, TAIL_PROMPTS, TAIL_MEAN, TAIL_SIGMA, TAIL_CAP, TAIL_SPEED = 64, 5_000, 150.0, 1.0, 3_000, 600.0
CEILING_SLOTS, CEILING_PROMPTS, ROUNDS = 96, 20_000, 3
WARM_UP_S = 3.0
RUN_WITHIN_S = 400.0


def heavy_tail() -> list[dict[str, Any]]:
    """Lognormal lengths, sigma 1, 64 slots, 5,000 prompts: time of the bare loop ÷ time of the worker, and busy slots."""
    options = (
        *("--max-running", str(TAIL_SLOTS), "--mean-tokens", str(TAIL_MEAN), "--sigma", str(TAIL_SIGMA)),
        *("--cap", str(TAIL_CAP), "--tokens-per-second", str(TAIL_SPEED), "--seed", "1", "--context-length", "200000"),
    )
    with bench_fleet() as fleet:
        source = fleet.prompts(TAIL_PROMPTS)
        fleet.engine("bare", *options)
        bare_s = bare(fleet, "bare", source, TAIL_SLOTS)
        fleet.engine("gpu0", *options)
        fleet.worker("gpu0", FLEET_SLOTS=str(TAIL_SLOTS))
        watch = Occupancy(fleet, "gpu0")
        worker_s = timed_run(fleet, source, watch)
        greedy_s = greedy_seconds(texts(source), LengthModel(TAIL_MEAN, TAIL_SIGMA, TAIL_CAP, 1), TAIL_SLOTS, TAIL_SPEED)
    return [
        figure("bare loop ÷ worker", bare_s / worker_s, "", at_least=0.95),
        figure("greedy bound ÷ worker", greedy_s / worker_s, "", at_least=0.95),
        figure("mean busy slots, warm-up and tail left out", watch.mean_share(TAIL_SLOTS), "of all", at_least=0.95),
        figure("most unstarted prompts held", watch.most_unstarted, "prompts", at_most=64 + TAIL_SLOTS // 8),
        figure("worker", worker_s, "s"),
    ]


def ceiling() -> list[dict[str, Any]]:
    """Answers at once, 96 in flight: rate of the worker ÷ rate of a bare loop, with checkpoints and shards."""
    ratios, to_own_client, rates = [], [], []
    with bench_fleet() as fleet:
        source = fleet.prompts(CEILING_PROMPTS)
        fleet.engine(
            "gpu0", "--tokens-per-second", "0", "--mean-tokens", "30", "--max-running", "1000", "--context-length", "200000"
        )
        fleet.worker("gpu0", FLEET_SLOTS=str(CEILING_SLOTS))
        for number in range(ROUNDS):
            bare_s = bare(fleet, "gpu0", source, CEILING_SLOTS)
            worker_s = timed_run(fleet, source, None, run=f"r{number}")
            ratios.append(bare_s / worker_s)
            to_own_client.append(bare(fleet, "gpu0", source, CEILING_SLOTS, kind="engine") / worker_s)
            rates.append(CEILING_PROMPTS / worker_s)
    ratios.sort()
    return [
        figure("worker ÷ bare httpx loop, median", ratios[len(ratios) // 2], "", at_least=0.6),
        figure("worker ÷ bare httpx loop, least", ratios[0], ""),
        figure("worker ÷ bare httpx loop, most", ratios[-1], ""),
        figure("worker ÷ its own client alone, median", sorted(to_own_client)[len(ratios) // 2], ""),
        figure("worker, median", sorted(rates)[len(rates) // 2], "prompts/s"),
    ]


def bare(fleet: FleetUnderTest, engine: str, source: Path, slots: int, kind: str = "httpx") -> float:
    """Seconds of a bare loop (tests/benchmarks/bare.py), in a process of its own."""
    argv = [sys.executable, "-m", "tests.benchmarks.bare", kind, fleet.engines[engine], str(source), str(slots)]
    return float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def texts(source: Path) -> list[str]:
    """The prompts of a source."""
    return [json.loads(line)["prompt"] for line in source.read_text().splitlines()]


def timed_run(fleet: FleetUnderTest, source: Path, watch: "Occupancy | None", run: str = "r") -> float:
    """Seconds from the first outcome's request to the last commit, by the simulator's and Redis' clocks."""
    done = fleet.producer("enqueue", str(source), "--run", run, "--max-tokens", "100000", "--json")
    begun = time.time()
    if done.code:
        raise RuntimeError(done.err)
    if watch:
        watch.start()
    fleet.wait_complete(run, RUN_WITHIN_S)
    ended = time.time()
    if watch:
        watch.stop()
    seen = get_json(f"{fleet.engines['gpu0']}/simulator/requests")["requests"]
    enqueued = float(fleet.client.hget(f"fleet:{{{run}}}:state", "created_at") or 0)
    first: float = min(row["start"] for row in seen if row["start"] >= enqueued and row["prompt_digest"] != "185f8db32271fe25")
    return ended - min(first, begun)


class Occupancy(threading.Thread):
    """Samples busy slots at the engine and unstarted prompts at the worker while a run goes on."""

    def __init__(self, fleet: FleetUnderTest, engine: str) -> None:
        super().__init__(daemon=True)
        self._fleet, self._engine = fleet, engine
        self._ended = threading.Event()
        self._samples: list[tuple[float, float, int]] = []
        self.most_unstarted = 0

    def run(self) -> None:
        while not self._ended.wait(0.25):
            state = get_json(f"{self._fleet.engines[self._engine]}/simulator/state")
            self._samples.append((state["at_s"], state["busy_slot_seconds"], state["finished"]))
            for key in self._fleet.client.scan_iter("fleet:worker:*"):
                self.most_unstarted = max(self.most_unstarted, int(self._fleet.client.hget(key, "unstarted") or 0))

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def mean_share(self, slots: int) -> float:
        """Mean share of busy slots between the warm-up and the start of the tail (the last prompts that fill all slots)."""
        begun = self._samples[0][0] + WARM_UP_S
        last = self._samples[-1][2]
        middle = [sample for sample in self._samples if sample[0] >= begun and sample[2] <= last - 2 * slots]
        (from_s, from_busy, _), (to_s, to_busy, _) = middle[0], middle[-1]
        return (to_busy - from_busy) / (to_s - from_s) / slots
